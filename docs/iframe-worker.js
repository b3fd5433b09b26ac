// Pages from the disk may not start a Worker: there the site's search runs as a script in a hidden frame.
if (location.protocol === "file:") {
  const load = (page, address) => {
    return new Promise((done, failed) => {
      const script = page.createElement("script");
      Object.assign(script, { src: address, onload: done, onerror: failed });
      page.documentElement.append(script);
    });
  };

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.frame = frame.contentWindow;
      this.waiting = []; // messages before the script is there
      window.addEventListener("message", (event) => {
        if (event.source === this.frame) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const page = frame.contentDocument;
      page.open(); // or Firefox would replace the empty page by another one
      page.write("<!doctype html>");
      page.close();
      // importScripts exists in a worker but not in a window; a script's load is waited for, as importScripts does
      this.frame.importScripts = (...urls) =>
        urls.reduce((before, address) => before.then(() => load(page, address)), Promise.resolve());
      this.frame.postMessage = (data) => window.dispatchEvent(new MessageEvent("message", { data, source: this.frame }));
      load(page, new URL(url, location.href)).then(() => {
        for (const data of this.waiting) this.deliver(data);
        this.waiting = null;
      });
    }

    deliver(data) {
      this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data, source: window }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(data);
    }

    terminate() {
      this.frame.frameElement.remove();
    }
  };
}

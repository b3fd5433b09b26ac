"use strict";
// Curves can be read under the pointer or with the arrow keys, hidden and smoothed. Without this script the charts, last
// values and value tables remain.
const charts = [...document.querySelectorAll("svg[data-axes]")].map(interactive);

function interactive(chart) {
  const [x0, x1, left, right, y0, y1, bottom, top] = JSON.parse(chart.dataset.axes);
  const valueX = (pixel) => x0 + (pixel - left) / (right - left) * (x1 - x0);
  const valueY = (pixel) => y0 + (pixel - bottom) / (top - bottom) * (y1 - y0);
  const curves = [...chart.querySelectorAll(".curve")].map((group) => {
    const path = [...group.querySelectorAll("path")].find((one) => !one.closest("defs"));
    const dots = [...group.querySelectorAll("use")].map((one) => [+one.getAttribute("x"), +one.getAttribute("y")]);
    const line = path ? path.getAttribute("d").match(/[\d.eE+-]+ [\d.eE+-]+/g).map((point) => point.split(" ").map(Number)) : [];
    return { group, path, points: line.length ? line : dots, shown: line.length ? line : dots };
  });
  const visible = () => curves.filter((one) => one.group.style.display !== "none");
  const places = () => [...new Set(visible().flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  const nearest = (values, x) => values.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(values[best] - x) ? i : best), 0);
  const round = (value) => (Math.abs(value) < 1e-12 ? "0" : Math.abs(value) < 1e-4 ? value.toExponential(2) : String(+value.toPrecision(4)));
  const cursor = chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  cursor.setAttribute("class", "cursor");
  let hint = null, place = -1;

  const hide = () => {
    if (hint) hint.remove();
    hint = null;
    cursor.removeAttribute("d");
  };
  const show = (index) => {
    const all = places();
    if (!all.length) return hide();
    place = Math.max(0, Math.min(all.length - 1, index));
    const x = all[place], share = x / chart.viewBox.baseVal.width;
    cursor.setAttribute("d", `M ${x} ${bottom} V ${top}`);
    if (!hint) {
      hint = chart.parentElement.appendChild(document.createElement("div"));
      hint.className = "hint";
      hint.setAttribute("aria-live", "polite");
    }
    hint.replaceChildren();
    const row = (name, value, slot) => {
      const line = hint.appendChild(document.createElement("div"));
      if (slot !== undefined) line.appendChild(document.createElement("i")).className = "swatch s" + slot;
      line.append(name);
      line.appendChild(document.createElement("b")).textContent = value;
    };
    row(chart.dataset.x, round(valueX(x)));
    for (const { group, points, shown } of visible()) {
      if (x < points[0][0] || x > points[points.length - 1][0]) continue;
      row(group.dataset.series, round(valueY(shown[nearest(points.map((point) => point[0]), x)][1])), group.dataset.slot);
    }
    hint.style.left = share < 0.5 ? `calc(${share * 100}% + 10px)` : "auto";
    hint.style.right = share < 0.5 ? "auto" : `calc(${100 - share * 100}% + 10px)`;
  };

  chart.setAttribute("tabindex", "0");
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    show(nearest(places(), (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width));
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const last = places().length - 1;
    const moves = { ArrowLeft: place < 0 ? last : place - 1, ArrowRight: place + 1, Home: 0, End: last };
    if (event.key === "Escape") hide();
    else if (event.key in moves) show(moves[event.key]);
    else return;
    event.preventDefault();
  });
  // exponential moving average, free of the bias of its start; the curve as it was stays behind, faint
  const smooth = (share) => curves.filter((one) => one.path && one.points.length > 2).forEach((one) => {
    let mean = 0, weight = 0;
    one.shown = one.points.map(([x, y]) => {
      mean = share * mean + (1 - share) * y;
      weight = share * weight + (1 - share);
      return [x, mean / weight];
    });
    if (!one.group.querySelector(".raw")) one.path.before(one.path.cloneNode());
    one.path.previousElementSibling.setAttribute("class", "raw");
    one.path.setAttribute("d", "M " + one.shown.map((point) => point.join(" ")).join(" L "));
  });
  return { smooth };
}

for (const item of document.querySelectorAll(".legend li[data-series]")) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", title: "hide or show this curve" });
  button.setAttribute("aria-pressed", "true");
  button.append(...item.childNodes);
  button.addEventListener("click", () => {
    const hidden = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!hidden));
    const same = (selector) => [...(item.closest("figure") || document).querySelectorAll(selector)];
    for (const part of same("svg [data-series]")) if (part.dataset.series === item.dataset.series) part.style.display = hidden ? "none" : "";
    for (const last of same("figure .legend li")) if (last.title === item.dataset.series) last.classList.toggle("off", hidden);
  });
  item.replaceChildren(button);
}

for (const grid of document.querySelectorAll(".charts")) {
  const label = document.createElement("label"), range = document.createElement("input"), value = document.createElement("output");
  label.className = "smoothing";
  Object.assign(range, { type: "range", min: 0, max: 0.95, step: 0.05, value: 0 });
  value.textContent = "off";
  label.append("Smoothing ", range, " ", value);
  range.addEventListener("input", () => {
    value.textContent = +range.value ? (+range.value).toFixed(2) : "off";
    for (const chart of charts) chart.smooth(+range.value);
  });
  grid.before(label);
}

for (const command of navigator.clipboard ? document.querySelectorAll(".command") : []) {
  const button = document.createElement("button"), box = document.createElement("div");
  Object.assign(button, { type: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  box.className = "copy";
  command.before(box);
  box.append(command, button);
}

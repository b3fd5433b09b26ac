"use strict";
// Values under the pointer or the arrow keys, curves that can be hidden and smoothed. Without this script the charts,
// last values and value tables remain.
const charts = [...document.querySelectorAll("svg[data-chart]")].map(interactive);

function interactive(chart) {
  const data = JSON.parse(chart.dataset.chart);
  const plot = chart.parentElement, cursor = chart.querySelector(".cursor");
  const [x0, x1, left, right] = data.x, [y0, y1, bottom, top] = data.y;
  const pixelX = (x) => left + (x - x0) / (x1 - x0 || 1) * (right - left);
  const pixelY = (y) => bottom + (y - y0) / (y1 - y0 || 1) * (top - bottom);
  const drawn = [...chart.querySelectorAll("[data-series]")];
  const curves = data.series.map((one, number) => ({ ...one, shown: one.y, hidden: false, parts: partsOf(drawn[number]) }));
  let hint = null, place = -1;

  const visible = () => curves.filter((one) => !one.hidden);
  const places = () => [...new Set(visible().flatMap((one) => one.x))].sort((a, b) => a - b);
  const nearest = (values, x) => values.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(values[best] - x) ? i : best), 0);
  const round = (value) => (value === 0 ? "0" : Math.abs(value) < 1e-4 ? value.toExponential(2) : String(+value.toPrecision(4)));

  const show = (index) => {
    const all = places();
    if (!all.length) return hide();
    place = Math.max(0, Math.min(all.length - 1, index));
    const x = all[place], pixel = pixelX(x);
    cursor.setAttribute("x1", pixel);
    cursor.setAttribute("x2", pixel);
    cursor.style.display = "";
    if (!hint) {
      hint = plot.appendChild(document.createElement("div"));
      hint.className = "hint";
      hint.setAttribute("aria-live", "polite");
    }
    hint.replaceChildren();
    const line = (slot, name, value) => {
      const row = hint.appendChild(document.createElement("div"));
      if (slot !== null) row.appendChild(document.createElement("i")).className = "swatch s" + slot;
      row.append(name);
      if (value) row.appendChild(document.createElement("b")).textContent = value;
    };
    line(null, data.xLabel, round(x));
    for (const one of visible()) {
      if (x < one.x[0] || x > one.x[one.x.length - 1]) continue;
      line(one.slot, one.name, round(one.shown[nearest(one.x, x)]));
    }
    const share = pixel / chart.viewBox.baseVal.width;
    hint.style.left = share < 0.5 ? `calc(${share * 100}% + 10px)` : "auto";
    hint.style.right = share < 0.5 ? "auto" : `calc(${100 - share * 100}% + 10px)`;
  };
  const hide = () => {
    if (hint) hint.remove();
    hint = null;
    cursor.style.display = "none";
  };

  chart.setAttribute("tabindex", "0");
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const pixel = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    show(nearest(places(), x0 + (pixel - left) / (right - left) * (x1 - x0)));
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const last = places().length - 1;
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last };
    if (event.key === "Escape") hide();
    else if (event.key in moves) show(place < 0 && event.key === "ArrowLeft" ? last : moves[event.key]);
    else return;
    event.preventDefault();
  });

  return {
    figure: chart.closest("figure"),
    toggle(name, hidden) {
      for (const one of curves.filter((curve) => curve.name === name)) {
        one.hidden = hidden;
        for (const part of one.parts) part.style.display = hidden ? "none" : "";
      }
    },
    // exponential moving average, free of the bias of its start; the curve as it was stays behind, faint
    smooth(share) {
      for (const one of curves) {
        const line = one.parts.find((part) => part.tagName === "polyline" && !part.classList.contains("raw"));
        if (!line || one.x.length < 3) continue;
        let mean = 0, weight = 0;
        one.shown = one.y.map((y) => {
          mean = share * mean + (1 - share) * y;
          weight = share * weight + (1 - share);
          return mean / weight;
        });
        let raw = one.parts.find((part) => part.classList.contains("raw"));
        if (!raw) {
          raw = line.cloneNode();
          raw.classList.add("raw");
          raw.removeAttribute("data-series");
          line.before(raw);
          one.parts.push(raw);
          raw.style.display = line.style.display;
        }
        line.setAttribute("points", one.shown.map((y, i) => `${pixelX(one.x[i]).toFixed(1)},${pixelY(y).toFixed(1)}`).join(" "));
      }
    },
  };
}

// a curve, its range before it and its dots after it
function partsOf(curve) {
  const parts = [curve];
  if (curve.previousElementSibling && curve.previousElementSibling.matches(".range")) parts.push(curve.previousElementSibling);
  for (let next = curve.nextElementSibling; next && next.matches("circle:not([data-series])"); next = next.nextElementSibling) parts.push(next);
  return parts;
}

for (const item of document.querySelectorAll(".legend li[data-series]")) {
  const figure = item.closest("figure");
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.title = "hide or show this curve";
  button.append(...item.childNodes);
  button.addEventListener("click", () => {
    const hidden = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!hidden));
    for (const chart of charts) if (!figure || chart.figure === figure) chart.toggle(item.dataset.series, hidden);
    if (figure) return;
    for (const last of document.querySelectorAll("figure .legend li")) if (last.title === item.dataset.series) last.classList.toggle("off", hidden);
  });
  item.replaceChildren(button);
}

const grid = document.querySelector(".charts");
if (grid) {
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

for (const command of document.querySelectorAll(".command")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  const box = document.createElement("div");
  box.className = "copy";
  command.before(box);
  box.append(command, button);
}

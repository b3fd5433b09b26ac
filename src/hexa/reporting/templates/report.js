"use strict";
// Curves can be read under the pointer or with the arrow keys, and hidden. Without this script the charts, last values
// and value tables remain.
document.querySelectorAll("svg[data-axes]").forEach((chart) => {
  const [x0, x1, left, right, y0, y1, bottom, top] = JSON.parse(chart.dataset.axes);
  const valueX = (pixel) => x0 + (pixel - left) / (right - left) * (x1 - x0);
  const valueY = (pixel) => y0 + (pixel - bottom) / (top - bottom) * (y1 - y0);
  const curves = [...chart.querySelectorAll(".curve")].map((group) => {
    const path = [...group.querySelectorAll("path")].find((one) => !one.closest("defs"));
    return { group, points: path.getAttribute("d").match(/[\d.eE+-]+ [\d.eE+-]+/g).map((point) => point.split(" ").map(Number)) };
  });
  const visible = () => curves.filter((one) => one.group.style.display !== "none");
  const places = () => [...new Set(visible().flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
  const nearest = (values, x) => values.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(values[best] - x) ? i : best), 0);
  const round = (value) => (Math.abs(value) < 1e-12 ? "0" : Math.abs(value) < 1e-4 ? value.toExponential(2) : String(+value.toPrecision(4)));
  const cursor = chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  const hint = document.createElement("div");
  cursor.setAttribute("class", "cursor");
  hint.className = "hint";
  hint.setAttribute("aria-live", "polite");
  let place = -1;

  const hide = () => {
    hint.remove();
    cursor.removeAttribute("d");
  };
  const row = (name, value, slot) => {
    const line = hint.appendChild(document.createElement("div"));
    if (slot !== undefined) line.appendChild(document.createElement("i")).className = "swatch s" + slot;
    line.append(name);
    line.appendChild(document.createElement("b")).textContent = value;
  };
  const show = (index) => {
    const all = places();
    if (!all.length) return hide();
    place = Math.max(0, Math.min(all.length - 1, index));
    const x = all[place], share = x / chart.viewBox.baseVal.width;
    cursor.setAttribute("d", `M ${x} ${bottom} V ${top}`);
    hint.replaceChildren();
    row(chart.dataset.x, round(valueX(x)));
    for (const { group, points } of visible()) {
      if (x < points[0][0] || x > points[points.length - 1][0]) continue;
      row(group.dataset.series, round(valueY(points[nearest(points.map((point) => point[0]), x)][1])), group.dataset.slot);
    }
    hint.style.left = share < 0.5 ? `calc(${share * 100}% + 10px)` : "auto";
    hint.style.right = share < 0.5 ? "auto" : `calc(${100 - share * 100}% + 10px)`;
    chart.parentElement.append(hint);
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
});

document.querySelectorAll(".legend li[data-series]").forEach((item) => {
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
});

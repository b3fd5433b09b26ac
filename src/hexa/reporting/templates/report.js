
"use strict";
// Values under the pointer or the arrow keys. Without this script the charts, last values and value tables remain.
for (const chart of document.querySelectorAll("svg[data-chart]")) {
  const data = JSON.parse(chart.dataset.chart);
  const plot = chart.parentElement, cursor = chart.querySelector(".cursor");
  const [x0, x1, left, right] = data.x;
  const places = [...new Set(data.series.flatMap((one) => one.x))].sort((a, b) => a - b);
  let hint = null, place = -1;

  const nearest = (values, x) => values.reduce((best, v, i) => (Math.abs(v - x) < Math.abs(values[best] - x) ? i : best), 0);
  const round = (value) => (value === 0 ? "0" : Math.abs(value) < 1e-4 ? value.toExponential(2) : String(+value.toPrecision(4)));

  const show = (index) => {
    place = Math.max(0, Math.min(places.length - 1, index));
    const x = places[place], pixel = left + (x - x0) / (x1 - x0 || 1) * (right - left);
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
    for (const one of data.series) {
      if (x < one.x[0] || x > one.x[one.x.length - 1]) continue;
      line(one.slot, one.name, round(one.y[nearest(one.x, x)]));
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
    show(nearest(places, x0 + (pixel - left) / (right - left) * (x1 - x0)));
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: places.length - 1 };
    if (event.key === "Escape") hide();
    else if (event.key in moves) show(place < 0 && event.key === "ArrowLeft" ? places.length - 1 : moves[event.key]);
    else return;
    event.preventDefault();
  });
}

for (const command of document.querySelectorAll(".command")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  command.classList.add("copied");
  command.append(button);
}

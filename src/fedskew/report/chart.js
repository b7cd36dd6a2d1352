// Shows the values of a figure under the pointer; with the focus on a figure, the arrow keys go from one to the next.
const known = new WeakMap();
const valuesOf = (chart) => {
  if (!known.has(chart)) known.set(chart, { ...JSON.parse(chart.dataset.tips), at: -1 });
  return known.get(chart);
};

function element(parent, name, kind, text = "") {
  const made = parent.appendChild(document.createElement(name));
  made.className = kind;
  made.textContent = text;
  return made;
}

function hide(chart) {
  chart.querySelectorAll(".tip, .dot").forEach((part) => part.remove());
}

function show(chart, at) {
  const { tips, methods } = valuesOf(chart);
  valuesOf(chart).at = at;
  hide(chart);
  const [x, y, head, lines] = tips[at];
  const tip = element(chart, "div", "tip");
  tip.setAttribute("role", "status");
  element(tip, "strong", "", head);
  for (const [method, height, text] of lines) {
    const line = element(tip, "div", `line series-${method % 8}`, `${methods[method]}: ${text}`);
    const dot = element(chart, "i", `dot series-${method % 8}`);
    [dot.style.left, dot.style.top] = [`${x / 10}%`, `${height / 10}%`];
  }
  if (!lines.length) {
    const dot = element(chart, "i", "dot");
    [dot.style.left, dot.style.top] = [`${x / 10}%`, `${y / 10}%`];
  }
  const room = chart.clientWidth - tip.offsetWidth;
  const beside = (x / 1000) * chart.clientWidth + 12;
  tip.style.left = `${Math.max(0, lines.length && beside > room ? beside - tip.offsetWidth - 24 : Math.min(beside, room))}px`;
  tip.style.top = lines.length ? "0" : `${y / 10}%`;
}

function nearest(chart, event) {
  const box = chart.getBoundingClientRect();
  const x = (1000 * (event.clientX - box.left)) / box.width;
  const y = (1000 * (event.clientY - box.top)) / box.height;
  const { by, tips } = valuesOf(chart);
  const far = ([a, b]) => (by.includes("x") ? (a - x) ** 2 : 0) + (by.includes("y") ? (b - y) ** 2 : 0);
  return tips.reduce((best, tip, i) => (far(tip) < far(tips[best]) ? i : best), 0);
}

const chartAt = (event) => event.target.closest?.("[data-tips]");
for (const kind of ["pointermove", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const chart = chartAt(event);
    document.querySelectorAll("[data-tips]:has(.tip)").forEach((other) => other !== chart && hide(other));
    if (chart) show(chart, nearest(chart, event));
  });
}
document.addEventListener("keydown", (event) => {
  const chart = chartAt(event);
  if (!chart) return;
  const { at, tips } = valuesOf(chart);
  const last = tips.length - 1;
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
  if (event.key === "Escape") hide(chart);
  if (to === undefined) return;
  event.preventDefault();
  show(chart, Math.min(Math.max(to, 0), last));
});
document.addEventListener("focusout", (event) => chartAt(event) && hide(chartAt(event)));

// A table that is wider than its place says so.
function mark() {
  document.querySelectorAll(".scroll").forEach((place) => place.classList.toggle("more", place.scrollWidth > place.clientWidth + 2));
}
addEventListener("resize", mark);
document.addEventListener("DOMContentLoaded", mark);

// The page of runs that continue is written again every few seconds. A browser keeps the reader's place when it reloads.
addEventListener("load", () => "live" in document.body.dataset && setTimeout(() => location.reload(), 2000));

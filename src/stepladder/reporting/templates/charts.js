"use strict";
// Charts: values under a crosshair, zoom by dragging, smoothing by a slider. Without this script,
// the page is complete. The values of a chart are in its attribute data-chart (charts/lines.py).

const SLIDER_FROM = 8; // points; shorter lines need no smoothing
const DRAG_FROM = 6; // units of the drawing; a shorter drag is a click
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const place = (value) => String(+value.toFixed(1));
const escaped = (text) => new Option(text).innerHTML;
const d = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${place(x)} ${place(y)}`).join("");

function axis([low, high], start, end, isLog) {
  const bend = isLog ? (value) => Math.log(Math.max(value, low)) : (value) => value;
  const perUnit = (end - start) / (bend(high) - bend(low) || 1);
  const at = (value) => start + (bend(value) - bend(low)) * perUnit;
  return { low, high, isLog, at, has: (value) => value >= low && value <= high };
}

// Round values within an axis, as in charts/scales.py.
function ticks({ low, high, isLog, has }) {
  if (isLog) {
    const powers = Array.from({ length: 99 }, (_, i) => Math.floor(Math.log10(low)) + i);
    const found = [[1], [1, 3], [1, 2, 5]]
      .map((factors) => powers.flatMap((power) => factors.map((f) => +`${f}e${power}`)).filter(has))
      .find((values) => values.length >= 3);
    if (found) return found.filter((_, i) => i % Math.ceil(found.length / 7) === 0);
  }
  const raw = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find((factor) => raw <= 1.2 * factor * power) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const num = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: num }, (_, i) => +((first + i) * step).toPrecision(12));
}

function label(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return size && size < 1e-4 ? value.toExponential(1) : String(+value.toPrecision(4));
}

// An exponential moving average, corrected for its start.
function smoothed(values, weight) {
  let mean = 0;
  return values.map((value, i) => {
    mean = weight * mean + (1 - weight) * value;
    return mean / (1 - weight ** (i + 1));
  });
}

// The part of a line between two positions.
function cut(points, start, end) {
  return points.flatMap(([x, y], i) => {
    const [x0, y0] = points[Math.max(i - 1, 0)];
    const edges = [start, end].filter((edge) => (x0 - edge) * (x - edge) < 0);
    const ends = edges.map((edge) => [edge, y0 + ((y - y0) * (edge - x0)) / (x - x0)]);
    return x >= start && x <= end ? [...ends, [x, y]] : ends;
  });
}

function nearest(values, wanted) {
  const gaps = values.map((value) => Math.abs(value - wanted));
  return gaps.indexOf(Math.min(...gaps));
}

class Chart {
  constructor(svg) {
    Object.assign(this, JSON.parse(svg.dataset.chart), { svg, weight: 0, from: null });
    [this.left, this.right, this.base, this.top] = this.plot;
    this.range = this.wholeX;
    for (const tip of svg.querySelectorAll("title")) tip.remove(); // the crosshair has the values
    this.original = svg.innerHTML;
    const add = (name, set) => svg.parentElement.appendChild(Object.assign(document.createElement(name), set));
    this.reset = add("button", { type: "button", className: "reset", textContent: "Reset zoom" });
    this.readout = add("div", { className: "readout" });
    this.draw();
    this.reset.onclick = svg.ondblclick = () => this.zoom(this.wholeX);
    svg.onpointerdown = (event) => this.press(event);
    svg.onpointermove = (event) => this.move(this.position(event));
    svg.onpointerup = () => this.release();
    svg.onpointerleave = ({ pointerType }) => pointerType === "mouse" && this.leave(); // a tap stays
    svg.onpointercancel = () => this.leave();
  }

  zoom(range) {
    this.range = range;
    this.draw();
  }

  smooth(weight) {
    this.weight = weight;
    this.draw();
  }

  value(y) {
    return label(y * this.factor) + this.suffix;
  }

  // The y axis fits the values in the range, within the y axis of the whole chart.
  scale() {
    this.x = axis(this.range, this.left, this.right, this.isLogX);
    let [low, high] = this.fullY;
    const seen = this.lines.flatMap(({ xs, ys, noise }) =>
      [-1, 1].flatMap((sign) => cut(xs.map((x, i) => [x, ys[i] + sign * (noise?.[i] ?? 0)]), ...this.range)),
    );
    if (this.range !== this.wholeX && seen.length) {
      const values = seen.map(([, y]) => clamp(y, low, high));
      const [least, most] = [Math.min(...values), Math.max(...values)];
      const air = 0.06 * (most - least) || 0.1 * Math.abs(most) || 1;
      low = Math.max(low, this.isLog ? least / 1.15 : least - air);
      high = Math.min(high, this.isLog ? most * 1.15 : most + air);
    }
    this.y = axis([low, high], this.base, this.top, this.isLog);
  }

  points(xs, ys) {
    const { x, y, left, right } = this;
    return cut(xs.map((value, i) => [x.at(value), y.at(clamp(ys[i], y.low, y.high))]), left, right);
  }

  draw() {
    const isWhole = this.range === this.wholeX;
    this.reset.hidden = isWhole;
    this.scale();
    const plot = isWhole && !this.weight ? this.original : this.drawn();
    this.svg.innerHTML = `${plot}<rect class="selection"/><g class="cross"></g>`;
    this.leave();
    const [box, frame] = this.boxes();
    this.reset.style.top = `${box.bottom - frame.top - 8}px`;
  }

  boxes() {
    return [this.svg, this.svg.parentElement].map((one) => one.getBoundingClientRect());
  }

  drawn() {
    const { x, y, left, right, top, base, weight } = this;
    const path = (style, points, end = "") => `<path class="${style}" d="${d(points)}${end}"/>`;
    const text = (style, [at, up], anchor, words) =>
      `<text class="${style}" x="${place(at)}" y="${place(up)}" text-anchor="${anchor}">${escaped(words)}</text>`;
    const parts = ticks(y).flatMap((tick) => [
      path("grid", [[left, y.at(tick)], [right, y.at(tick)]]),
      text("tick", [left - 7, y.at(tick) + 4], "end", this.value(tick)),
    ]);
    parts.push(path("axis", [[left, base], [right, base]]));
    for (const tick of ticks(x)) {
      parts.push(path("axis", [[x.at(tick), base], [x.at(tick), base + 4]]));
      parts.push(text("tick", [x.at(tick), base + 16], "middle", label(tick)));
    }
    parts.push(text("unit", [right, base + 30], "end", this.xLabel));
    for (const { style, xs, ys, noise } of this.lines.filter((line) => line.noise)) {
      const above = this.points(xs, ys.map((value, i) => value + noise[i]));
      const below = this.points(xs, ys.map((value, i) => value - noise[i]));
      parts.push(path(`band ${style}`, [...above, ...below.reverse()], "Z"));
    }
    if (this.mark && x.has(this.mark[0])) {
      const at = x.at(this.mark[0]);
      const isRight = at > 0.7 * (left + right);
      parts.push(path("mark", [[at, top - 10], [at, base]]));
      parts.push(text("marked", [isRight ? at - 5 : at + 5, top - 4], isRight ? "end" : "start", this.mark[1]));
    }
    for (const { style, xs, ys, meanXs = xs, meanYs = ys, radius } of this.lines) {
      parts.push(path(`line ${style}${weight ? " raw" : ""}`, this.points(xs, ys)));
      if (weight) parts.push(path(`line ${style}`, this.points(meanXs, smoothed(meanYs, weight))));
      if (radius) parts.push(...xs.map((value, i) => this.dot(style, value, ys[i], radius)));
    }
    return parts.join("");
  }

  dot(style, value, height, radius) {
    const { x, y } = this;
    if (!x.has(value)) return "";
    const up = place(y.at(clamp(height, y.low, y.high)));
    return `<circle class="dot ${style}" cx="${place(x.at(value))}" cy="${up}" r="${radius}"/>`;
  }

  position(event) {
    const box = this.svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
    return clamp(at, this.left, this.right);
  }

  press(event) {
    if (event.button) return;
    this.leave();
    this.svg.setPointerCapture(event.pointerId);
    this.from = this.to = this.position(event);
  }

  move(at) {
    if (this.from === null) return this.show(at);
    this.to = at;
    const [x, width] = [Math.min(this.from, at), Math.abs(this.from - at)];
    const place = { x, width, y: this.top, height: this.base - this.top };
    const selection = this.svg.querySelector(".selection");
    for (const [key, value] of Object.entries(place)) selection.setAttribute(key, value);
  }

  release() {
    if (this.from === null) return;
    const ends = [this.from, this.to].sort((a, b) => a - b);
    this.leave();
    if (ends[1] - ends[0] < DRAG_FROM) this.show(this.to);
    else this.zoom(ends.map((at) => this.valueAt(at)));
  }

  valueAt(at) {
    const { low, high, isLog } = this.x;
    const share = (at - this.left) / (this.right - this.left);
    return isLog ? low * (high / low) ** share : low + (high - low) * share;
  }

  // The values of all lines at the logged x that is nearest to a position.
  show(at) {
    const xs = this.lines.flatMap((line) => line.xs).filter(this.x.has);
    if (!xs.length) return;
    const here = xs[nearest(xs, this.valueAt(at))];
    const rows = this.lines.map(({ name, style, xs, ys, noise, meanXs = xs, meanYs = ys }) => {
      const i = nearest(xs, here);
      const said = [`${name} ${this.value(ys[i])}`.trim()];
      if (noise) said[0] += ` ± ${this.value(noise[i])}`;
      if (this.weight) said.push(`smoothed ${this.value(smoothed(meanYs, this.weight)[nearest(meanXs, here)])}`);
      if (xs[i] !== here) said.push(`at ${label(xs[i])}`);
      return `<span class="key ${style}">${escaped(said.join(", "))}</span>`;
    });
    const dots = this.lines.map(({ style, xs, ys }) => this.dot(style, xs[nearest(xs, here)], ys[nearest(xs, here)], 3.5));
    const x = this.x.at(here);
    this.svg.querySelector(".cross").innerHTML = `<path d="M${place(x)} ${this.top}V${this.base}"/>${dots.join("")}`;
    this.readout.innerHTML = `<b>${escaped(this.xLabel)} ${label(here)}</b>${rows.join("")}`;
    this.readout.hidden = false;
    const [box, frame] = this.boxes();
    const left = (x / this.svg.viewBox.baseVal.width) * box.width;
    const isRight = left > box.width / 2;
    Object.assign(this.readout.style, {
      top: `${box.top - frame.top + 24}px`,
      left: isRight ? "auto" : `${left + 12}px`,
      right: isRight ? `${box.width - left + 12}px` : "auto",
    });
  }

  leave() {
    this.from = null;
    this.svg.querySelector(".selection").setAttribute("width", 0);
    this.svg.querySelector(".cross").replaceChildren();
    this.readout.hidden = true;
  }
}

const charts = [...document.querySelectorAll("svg[data-chart]")].map((svg) => new Chart(svg));
for (const group of document.querySelectorAll(".curves")) {
  const inside = charts.filter(({ svg }) => group.contains(svg));
  if (!inside.some(({ lines }) => lines.some(({ xs }) => xs.length >= SLIDER_FROM))) continue;
  group.insertAdjacentHTML(
    "afterbegin",
    '<label class="smoothing">smoothing <input type="range" max="0.99" step="0.01" value="0" autocomplete="off"></label>',
  );
  group.querySelector("input").oninput = ({ target }) => inside.forEach((chart) => chart.smooth(+target.value));
}

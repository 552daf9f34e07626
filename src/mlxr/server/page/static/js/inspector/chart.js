// A small chart on a canvas, with a legend that tells the newest values as text.

import { element } from "../element.js";
import { duration, short } from "./numbers.js";

const HEIGHT = 126;
const FOOT = 18; // below the lowest line: what the edges mean

/** Lines over time, or bars, one for each step. */
export class Chart {
  /**
   * @param {string} title
   * @param {[string, string][]} series names, each with the class that colours it.
   * @param {{bars?: boolean, most?: number, unit?: function(number): string, note?: string,
   *   mean?: function(Object[]): (number|null)[]}} options `most`: the top of the scale, if it is fixed; `mean`: a figure
   *   for all points that are shown. Bars stand on each other, on a logarithmic scale.
   */
  constructor(title, series, { bars = false, most = null, unit = short, note = "", mean = null } = {}) {
    Object.assign(this, { title, series, bars, most, unit, mean });
    this.canvas = element("canvas", { role: "img", height: HEIGHT });
    this.swatches = series.map(([, color]) => element("i", { class: `swatch ${color}` }));
    this.values = series.map(() => element("b", { text: "–" }));
    this.note = element("small", { text: note });
    this.node = element("figure", { class: "chart" },
      element("figcaption", {}, element("h3", { text: title }), this.note,
        element("p", { class: "legend" }, ...series.map(([name], at) => element("span", {}, this.swatches[at], ` ${name} `, this.values[at])))),
      this.canvas);
  }

  /**
   * Shows points, oldest first.
   * @param {{time: number, values: (number|null)[]}[]} points
   * @param {number} now the right edge, in the points' seconds.
   * @param {number} seconds from the left edge to the right one; bars need none.
   */
  show(points, now, seconds = 0) {
    const newest = points.at(-1)?.values ?? [];
    const seen = points.filter((point) => this.bars || point.time > now - seconds);
    const means = this.mean && seen.length ? this.mean(seen) : [];
    const known = seen.length ? Math.min(seconds, now - seen[0].time) : 0; // a model that was just loaded has no more
    const told = (value) => (value === null || value === undefined ? "–" : this.unit(value));
    for (const [at, node] of this.values.entries()) {
      const figure = this.bars ? told(newest[at]) : `${told(newest[at])} now`;
      node.textContent = means[at] === undefined ? figure : `${figure}, ${told(means[at])} over ${duration(known)}`;
    }
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.series.map(([name], at) => `${name} ${this.values[at].textContent}`).join(", ")}`);
    const width = this.canvas.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = HEIGHT * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colors = this.swatches.map((swatch) => getComputedStyle(swatch).backgroundColor);
    const { color } = getComputedStyle(this.canvas);
    if (this.bars) this.#bars(pen, points, width, colors, color); else this.#lines(pen, points, now, seconds, width, colors, color);
  }

  #lines(pen, points, now, seconds, width, colors, ink) {
    const first = points.findIndex((point) => point.time > now - seconds);
    const shown = first < 0 ? [] : points.slice(Math.max(0, first - 1));
    const top = this.most ?? rounded(Math.max(1, ...shown.flatMap((point) => point.values.map((value) => value ?? 0))));
    this.#scale(pen, width, top, ink, `${duration(seconds)} ago`, "now");
    const x = (time) => width - ((now - time) / seconds) * width;
    const y = (value) => HEIGHT - FOOT - (value / top) * (HEIGHT - FOOT - 16);
    for (const [at, color] of colors.entries()) {
      pen.strokeStyle = color;
      pen.fillStyle = color;
      pen.lineWidth = 1.8;
      pen.beginPath();
      let open = false;
      for (const { time, values } of shown) {
        if (values[at] === null) { open = false; continue; }
        if (open) pen.lineTo(x(time), y(values[at])); else pen.moveTo(x(time), y(values[at]));
        if (!open) pen.fillRect(x(time) - 1.5, y(values[at]) - 1.5, 3, 3);
        open = true;
      }
      pen.stroke();
    }
  }

  #bars(pen, points, width, colors, ink) {
    const size = Math.max(2, Math.min(6, width / 150));
    const shown = points.slice(-Math.floor(width / size));
    const total = (point) => point.values.reduce((sum, value) => sum + value, 0);
    const top = Math.max(2, ...shown.map(total));
    this.#scale(pen, width, top, ink, shown.length ? `${shown.length} steps` : "", "the newest");
    const height = (value) => (Math.log2(1 + value) / Math.log2(1 + top)) * (HEIGHT - FOOT - 16);
    for (const [at, point] of shown.entries()) {
      const x = width - (shown.length - at) * size;
      let below = 0;
      for (const [series, value] of point.values.entries()) {
        const from = height(below);
        below += value;
        pen.fillStyle = colors[series];
        pen.fillRect(x, HEIGHT - FOOT - height(below), size - 0.6, height(below) - from);
      }
    }
  }

  /** The lines of the greatest value and of 0, with these, and what the left and the right edge are. */
  #scale(pen, width, top, ink, left, right) {
    pen.fillStyle = ink;
    pen.strokeStyle = ink;
    pen.globalAlpha = 0.75;
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(this.unit(top), 2, 11);
    pen.fillText(left, 2, HEIGHT - 4);
    if (!this.bars) pen.fillText("0", 2, HEIGHT - FOOT - 4);
    pen.textAlign = "right";
    pen.fillText(right, width - 2, HEIGHT - 4);
    pen.globalAlpha = 0.25;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const y of [15.5, HEIGHT - FOOT + 0.5]) { pen.moveTo(0, y); pen.lineTo(width, y); }
    pen.stroke();
    pen.globalAlpha = 1;
  }
}

/** The next number of the form 1, 2 or 5 times a power of ten. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value * 0.999);
}

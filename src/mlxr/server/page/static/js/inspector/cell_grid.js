// Blocks, or slots of states, on a canvas: each free, cached, in use, or shared; and whose.

import { element } from "../element.js";

const STATES = { f: "free", c: "cached", u: "in use", s: "shared" };
const HEIGHT = 220;
const KEYS = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: (columns) => -columns, ArrowDown: (columns) => columns };

/** The picture, and a line that tells of the cell under the pointer, or of the one that arrow keys have come to. */
export class CellGrid {
  /**
   * @param {number} number of this grid, among those that are shown.
   * @param {string} noun what a cell is, such as "block".
   */
  constructor(number, noun) {
    this.noun = noun;
    const id = `arena-cell-${number}`;
    this.canvas = element("canvas", { tabindex: "0", role: "img", height: HEIGHT, "aria-describedby": id });
    this.told = element("output", { id, class: "hint", "aria-live": "polite", text: `Point at a ${noun}, or use the arrow keys, to see whose it is.` });
    this.swatches = Object.fromEntries(Object.entries(STATES).map(([key, name]) => [key, element("i", { class: `swatch block-${name.replace(" ", "-")}` })]));
    this.counts = Object.fromEntries(Object.keys(STATES).map((key) => [key, element("b")]));
    this.title = element("h3");
    this.summary = element("small");
    this.node = element("figure", { class: "chart arena" },
      element("figcaption", {}, this.title, this.summary,
        element("p", { class: "legend" }, ...Object.entries(STATES).map(([key, name]) => element("span", {}, this.swatches[key], ` ${name} `, this.counts[key])))),
      this.canvas, this.told);
    this.cursor = null;
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /**
   * Shows cells.
   * @param {{states: string, free: number, cached: number, used: number, shared: number}} cells
   * @param {{title: string, summary: string}} texts
   * @param {Map<number, {sequence: Object, text: string}[]>} owners of cells, with what a cell is to each of them.
   * @param {{isAlone: boolean, note: function(number): string}} options whether no grid is beside it, which may then be
   *   lower; what else to tell of a cell.
   */
  show(cells, { title, summary }, owners, { isAlone = true, note = () => "" } = {}) {
    Object.assign(this, { cells, owners, isAlone, note });
    this.title.textContent = title;
    this.summary.textContent = summary;
    for (const [key, count] of [["f", cells.free], ["c", cells.cached], ["u", cells.used], ["s", cells.shared]]) this.counts[key].textContent = count;
    this.canvas.setAttribute("aria-label", `${title}: ${cells.used + cells.shared} of ${cells.states.length} ${this.noun}s in use, ${cells.shared} of them shared, ${cells.cached} cached, ${cells.free} free`);
    this.#draw();
    if (this.cursor >= cells.states.length) this.cursor = null; // the model was loaded again, with a smaller arena
    if (this.cursor !== null) this.#tell();
  }

  #draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const { states } = this.cells;
    const size = cellSize(states.length, width, HEIGHT);
    this.columns = Math.max(1, Math.floor(width / size));
    this.size = size;
    const height = this.isAlone ? HEIGHT : Math.min(HEIGHT, Math.ceil(states.length / this.columns) * size);
    this.canvas.style.height = `${height}px`;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colors = Object.fromEntries(Object.entries(this.swatches).map(([key, swatch]) => [key, getComputedStyle(swatch).backgroundColor]));
    const gap = size > 5 ? 1 : 0.4;
    for (let cell = 0; cell < states.length; cell += 1) {
      const [x, y] = [(cell % this.columns) * size, Math.floor(cell / this.columns) * size];
      const state = states[cell];
      const owner = this.owners.get(cell);
      pen.fillStyle = state === "u" && owner ? hue(owner[0].sequence.id) : colors[state];
      pen.fillRect(x, y, size - gap, size - gap);
      if (state === "s" && size > 5) {
        const part = (size - gap - 4) / Math.max(1, owner?.length ?? 1);
        for (const [at, { sequence }] of (owner ?? []).entries()) {
          pen.fillStyle = hue(sequence.id);
          pen.fillRect(x + 2 + at * part, y + 2, part, size - gap - 4);
        }
      }
    }
    if (this.cursor !== null) {
      pen.strokeStyle = getComputedStyle(this.canvas).color;
      pen.lineWidth = 2;
      pen.strokeRect((this.cursor % this.columns) * size, Math.floor(this.cursor / this.columns) * size, size - gap, size - gap);
    }
  }

  #point(event) {
    if (!this.columns) return;
    const cell = Math.floor(event.offsetY / this.size) * this.columns + Math.floor(event.offsetX / this.size);
    if (cell < this.cells.states.length && event.offsetX < this.columns * this.size) this.#at(cell);
  }

  #key(event) {
    const step = KEYS[event.key]?.(this.columns);
    if (!step || !this.columns) return;
    event.preventDefault();
    this.#at(Math.min(this.cells.states.length - 1, Math.max(0, this.cursor === null ? 0 : this.cursor + step)));
  }

  #at(cell) {
    this.cursor = cell;
    this.#draw();
    this.#tell();
  }

  #tell() {
    const whose = (this.owners.get(this.cursor) ?? []).map(({ sequence, text }) =>
      `${sequence.request === null ? `sequence ${sequence.id}` : `request ${sequence.request}`}, ${text}`);
    const noun = this.noun[0].toUpperCase() + this.noun.slice(1);
    const text = `${noun} ${this.cursor}: ${STATES[this.cells.states[this.cursor]]}${whose.length ? `, of ${whose.join("; ")}` : ""}${this.note(this.cursor)}`;
    if (this.told.textContent !== text) this.told.textContent = text;
  }
}

/** The colour of a sequence, everywhere. */
export function hue(id) {
  return `hsl(${(id * 67 + 210) % 360} 62% 52%)`;
}

/** The largest size, up to 22 pixels, with which so many cells fit. */
export function cellSize(count, width, height) {
  for (let size = 22; size > 2; size -= 0.5) {
    if (Math.floor(width / size) * Math.floor(height / size) >= count) return size;
  }
  return 2;
}

// The blocks of the KV arena on a canvas: each free, cached, in use, or shared; and whose.

import { element } from "../element.js";
import { bytes } from "./numbers.js";

const STATES = { f: "free", c: "cached", u: "in use", s: "shared" };
const HEIGHT = 220;
const KEYS = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: (columns) => -columns, ArrowDown: (columns) => columns };

/** The picture, and a line that tells of the block under the pointer, or of the one that arrow keys have come to. */
export class ArenaPicture {
  constructor() {
    this.canvas = element("canvas", { tabindex: "0", role: "img", height: HEIGHT, "aria-describedby": "arena-block" });
    this.told = element("output", { id: "arena-block", class: "hint", "aria-live": "polite", text: "Point at a block, or use the arrow keys, to see whose it is." });
    this.swatches = Object.fromEntries(Object.entries(STATES).map(([key, name]) => [key, element("i", { class: `swatch block-${name.replace(" ", "-")}` })]));
    this.counts = Object.fromEntries(Object.keys(STATES).map((key) => [key, element("b")]));
    this.summary = element("small");
    this.node = element("figure", { class: "chart arena" },
      element("figcaption", {}, element("h3", { text: "KV arena" }), this.summary,
        element("p", { class: "legend" }, ...Object.entries(STATES).map(([key, name]) => element("span", {}, this.swatches[key], ` ${name} `, this.counts[key])))),
      this.canvas, this.told);
    this.cursor = null;
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Shows an arena as /inspector/arena gives it. */
  show(arena) {
    this.arena = arena;
    this.owners = owners(arena);
    const used = arena.used + arena.shared;
    this.summary.textContent = `${arena.num_blocks} blocks of ${arena.block_size} tokens, ${bytes(arena.block_bytes)} each, ${arena.mode}`;
    for (const [key, count] of [["f", arena.free], ["c", arena.cached], ["u", arena.used], ["s", arena.shared]]) this.counts[key].textContent = count;
    this.canvas.setAttribute("aria-label", `KV arena: ${used} of ${arena.num_blocks} blocks in use, ${arena.shared} of them shared, ${arena.cached} cached, ${arena.free} free`);
    this.#draw();
    if (this.cursor !== null) this.#tell();
  }

  #draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const { states } = this.arena;
    const size = cellSize(states.length, width, HEIGHT);
    this.columns = Math.max(1, Math.floor(width / size));
    this.size = size;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = HEIGHT * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colors = Object.fromEntries(Object.entries(this.swatches).map(([key, swatch]) => [key, getComputedStyle(swatch).backgroundColor]));
    const gap = size > 5 ? 1 : 0.4;
    for (let block = 0; block < states.length; block += 1) {
      const [x, y] = [(block % this.columns) * size, Math.floor(block / this.columns) * size];
      const state = states[block];
      const owner = this.owners.get(block);
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
    if (!this.arena) return;
    const block = Math.floor(event.offsetY / this.size) * this.columns + Math.floor(event.offsetX / this.size);
    if (block < this.arena.num_blocks && event.offsetX < this.columns * this.size) this.#at(block);
  }

  #key(event) {
    const step = KEYS[event.key]?.(this.columns);
    if (!step || !this.arena) return;
    event.preventDefault();
    this.#at(Math.min(this.arena.num_blocks - 1, Math.max(0, this.cursor === null ? 0 : this.cursor + step)));
  }

  #at(block) {
    this.cursor = block;
    this.#draw();
    this.#tell();
  }

  #tell() {
    const whose = (this.owners.get(this.cursor) ?? []).map(({ sequence, place }) =>
      `${sequence.request === null ? `sequence ${sequence.id}` : `request ${sequence.request}`}, its block ${place}`);
    const text = `Block ${this.cursor}: ${STATES[this.arena.states[this.cursor]]}${whose.length ? `, of ${whose.join("; ")}` : ""}`;
    if (this.told.textContent !== text) this.told.textContent = text;
  }
}

/** The colour of a sequence, everywhere. */
export function hue(id) {
  return `hsl(${(id * 67 + 210) % 360} 62% 52%)`;
}

/** Whose each block is: by blocks, the sequences with the block's place in each. */
export function owners(arena) {
  const whose = new Map();
  for (const sequence of arena.sequences) {
    let place = 0;
    for (const [first, last] of sequence.blocks) {
      for (let block = first; block <= last; block += 1) {
        if (!whose.has(block)) whose.set(block, []);
        whose.get(block).push({ sequence, place });
        place += 1;
      }
    }
  }
  return whose;
}

/** The largest size, up to 22 pixels, with which so many cells fit. */
export function cellSize(count, width, height) {
  for (let size = 22; size > 2; size -= 0.5) {
    if (Math.floor(width / size) * Math.floor(height / size) >= count) return size;
  }
  return 2;
}

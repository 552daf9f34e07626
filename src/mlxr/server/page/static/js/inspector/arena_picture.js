// The arena: a grid of blocks for each group of layers, and one of the slots of states, if the model keeps some.

import { element } from "../element.js";
import { CellGrid } from "./cell_grid.js";
import { bytes } from "./numbers.js";

/** The grids, made when an arena with as many groups is shown first. */
export class ArenaPicture {
  constructor() {
    this.node = element("div", { class: "arenas" });
    this.groups = [];
    this.slots = null;
  }

  /** Shows an arena as /inspector/arena gives it. */
  show(arena) {
    if (this.groups.length !== arena.groups.length || !this.slots !== !arena.slots) this.#make(arena);
    const isAlone = this.groups.length === 1 && !this.slots;
    for (const [number, grid] of this.groups.entries()) grid.show(arena.groups[number], groupTexts(arena, number), owners(arena, number), { isAlone });
    if (!this.slots) return;
    const snapshots = new Set(arena.slots.snapshots);
    this.slots.show(arena.slots, slotTexts(arena.slots), slotOwners(arena), {
      isAlone, note: (slot) => (snapshots.has(slot) ? "; it holds a snapshot" : ""),
    });
  }

  #make(arena) {
    this.groups = arena.groups.map((_, number) => new CellGrid(number, "block"));
    this.slots = arena.slots && new CellGrid(this.groups.length, "slot");
    this.node.replaceChildren(...this.groups.map((grid) => grid.node), ...(this.slots ? [this.slots.node] : []));
  }
}

/** Title and summary of a group of layers. */
export function groupTexts(arena, number) {
  const { layers, window, num_blocks: count, block_bytes: size } = arena.groups[number];
  const blocks = `${count} blocks of ${arena.block_size} tokens`;
  if (arena.groups.length === 1 && !arena.slots) return { title: "KV arena", summary: `${blocks}, ${bytes(size)} each, ${arena.mode}` };
  if (!layers.length) return { title: "No layers, all tokens", summary: `${blocks}, without memory: prefixes are found by them` };
  return {
    title: `${layers.length} ${layers.length === 1 ? "layer" : "layers"}, ${kept(window)}`,
    summary: `${layers.length === 1 ? "layer" : "layers"} ${runs(layers)}; ${blocks}, ${bytes(size)} each${window === null ? "" : "; those that have left the window are given back"}`,
  };
}

/** What layers keep of a sequence. */
export function kept(window) {
  return window === null ? "all tokens" : `a window of ${window} tokens`;
}

/** Title and summary of the slots of states. */
function slotTexts({ num_slots: count, slot_bytes: size, snapshots }) {
  return {
    title: "States of sequences",
    summary: `${count} slots, ${bytes(size)} each; ${snapshots.length} ${snapshots.length === 1 ? "holds a snapshot" : "hold snapshots"}, from which prompts that begin alike go on`,
  };
}

/** Whose each block of a group is: by blocks, the sequences with the block's place in each. */
export function owners(arena, number) {
  const whose = new Map();
  for (const sequence of arena.sequences) {
    let { first: place } = sequence.groups[number];
    for (const [first, last] of sequence.groups[number].blocks) {
      for (let block = first; block <= last; block += 1) {
        add(whose, block, { sequence, text: `its block ${place}` });
        place += 1;
      }
    }
  }
  return whose;
}

/** Whose each slot is, and after how many tokens its state is. */
export function slotOwners(arena) {
  const whose = new Map();
  for (const sequence of arena.sequences) {
    for (const { slot, tokens } of sequence.slots) add(whose, slot, { sequence, text: `after ${tokens} tokens` });
  }
  return whose;
}

/** Numbers in short: 0–3, 5, 7. */
function runs(numbers) {
  const ends = [];
  for (const number of numbers) {
    if (ends.length && ends.at(-1)[1] === number - 1) ends.at(-1)[1] = number; else ends.push([number, number]);
  }
  return runTexts(ends);
}

/** Runs (first, last) as text. */
export function runTexts(ends) {
  return ends.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
}

function add(whose, cell, owner) {
  if (!whose.has(cell)) whose.set(cell, []);
  whose.get(cell).push(owner);
}

// What the boxes and lines of a graph mean, and what each graph is.

import { element, svg } from "../element.js";

const ABOUT = {
  source: "The ops as the spec describes them, before fusion.",
  decode: "Decode: a step that computes one new token of each sequence. A box may do the work of several source ops, which stand in it.",
  prefill: "Prefill: a step that reads prompts, many tokens at once, or prompts and new tokens together.",
  all: "The source graph, and what it was fused to: for steps of one new token a sequence (decode), and for prompts (prefill).",
};
const FAMILIES = [
  ["gather", "lookup"], ["norm", "norm"], ["matmul", "matrix product"], ["rope", "rotary position"], ["cache", "cache write"],
  ["attention", "attention"], ["elementwise", "elementwise"],
];
const LINES = [
  ["value", "a value, with its shape"], ["arena", "reads or writes the KV arena"],
  ["token", "order only: who uses the arena comes after who wrote it, also from one step to the next"],
];

/** What a graph of this name is; `all`: of all three. */
export function aboutGraph(name) {
  return ABOUT[name] ?? "";
}

/** The legend. */
export function legend() {
  return element("details", { class: "key", open: innerWidth > 720 }, element("summary", { text: "Legend" }), element("p", {},
    ...FAMILIES.map(([family, text]) => entry(svg("rect", { class: `box ${family}`, x: 1, y: 1, width: 16, height: 12, rx: 3 }), 18, text)),
    ...LINES.map(([kind, text]) => entry(svg("path", { class: `edge ${kind}`, d: "M1 7h26" }), 28, text))));
}

function entry(shape, width, text) {
  return element("span", {}, svg("svg", { class: "graph sample", width, height: 14, "aria-hidden": "true" }, shape), ` ${text}`);
}

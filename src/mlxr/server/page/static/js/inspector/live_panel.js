// What the engine of a model does now: tokens, queue, hits, the batch of each step, the arena.

import { getJson } from "../api.js";
import { element, labelled } from "../element.js";
import { ArenaPicture, kept, runTexts } from "./arena_picture.js";
import { hue } from "./cell_grid.js";
import { Chart } from "./chart.js";
import { duration, short } from "./numbers.js";
import { table } from "./op_panel.js";

const ARENA_MS = 500;
const HISTORY_MS = 1000;
const KEPT_SAMPLES = 3000; // then all are read anew: the server merges old ones
const KEPT_STEPS = 512;
const LEAST_SECONDS = 120;
const SPANS = [[120, "2 minutes"], [600, "10 minutes"], [3600, "hour"], [Infinity, "since the model was loaded"]];

/** The live view of one model. */
export class LivePanel {
  constructor(node, model) {
    this.model = model;
    this.closing = new AbortController();
    this.samples = [];
    this.steps = [];
    this.since = 0;
    this.begun = 0;
    this.span = element("select", { on: { change: () => this.#draw() } }, ...SPANS.map(([, text], at) => element("option", { value: at, text: at === SPANS.length - 1 ? text : `the last ${text}`, selected: at === 0 })));
    this.blocks = new Chart("Blocks", [["in use", "tone-1"], ["cached", "tone-4"], ["shared", "tone-3"]]);
    this.charts = [
      [new Chart("Tokens a second", [["of answers", "tone-1"], ["computed, with prompts", "tone-2"]], { mean: perSecond }), (s) => [s.generated_per_second, s.computed_per_second]],
      [new Chart("Requests", [["running", "tone-1"], ["waiting", "tone-3"]]), (s) => [s.running, s.waiting]],
      [new Chart("Prefix cache", [["of prompts' tokens were there", "tone-4"]], { most: 1, unit: (value) => `${short(value * 100)} %`, mean: hitRate }), (s) => [s.hit_rate]],
      [this.blocks, (s) => [s.blocks_used, s.blocks_cached, s.blocks_shared]],
    ];
    this.batches = new Chart("Batch of each step, tokens", [["one of each sequence", "tone-1"], ["prompts", "tone-2"], ["drafts", "tone-3"]], { bars: true, note: "a bar for each step, logarithmic; the figures are of the newest one, at the right" });
    this.ago = element("small");
    this.arena = new ArenaPicture();
    this.sequences = element("div");
    this.problem = element("p", { class: "error", role: "alert" });
    this.redraw = () => { if (this.last) this.arena.show(this.last); this.#draw(); };
    node.append(element("h2", { class: "hidden", text: `What ${model} does now` }), this.problem, element("div", { class: "span" }, labelled("Charts show", this.span), this.ago), element("div", { class: "charts" }, ...this.charts.map(([chart]) => chart.node), this.batches.node, this.arena.node,
      element("section", { class: "chart" }, element("h3", { text: "Sequences in the arena" }), this.sequences)));
    addEventListener("resize", this.redraw);
    document.addEventListener("themechange", this.redraw);
    this.#repeat(HISTORY_MS, () => this.#history());
    this.#repeat(ARENA_MS, () => this.#blocks());
  }

  close() {
    this.closing.abort();
    removeEventListener("resize", this.redraw);
    document.removeEventListener("themechange", this.redraw);
  }

  async #repeat(milliseconds, action) {
    while (!this.closing.signal.aborted) {
      try {
        if (!document.hidden) await action();
        this.problem.textContent = "";
      } catch (error) {
        if (error.name === "AbortError") return;
        this.problem.textContent = error.message;
      }
      await new Promise((resolve) => { setTimeout(resolve, milliseconds); });
    }
  }

  async #history() {
    const isAll = this.samples.length > KEPT_SAMPLES;
    const told = await getJson("/inspector/history", { model: this.model, since: isAll ? 0 : this.since }, this.closing.signal);
    this.since = told.now;
    this.begun = told.begun;
    this.samples = isAll ? told.samples : [...this.samples, ...told.samples];
    this.steps = isAll ? told.steps : [...this.steps, ...told.steps].slice(-KEPT_STEPS);
    this.#draw();
  }

  #draw() {
    const now = this.since;
    const seconds = Math.max(LEAST_SECONDS, Math.min(SPANS[this.span.value][0], now - this.begun));
    this.ago.textContent = now ? `from ${duration(seconds)} ago to now; a figure “now” is of the last second` : "";
    for (const [chart, values] of this.charts) chart.show(this.samples.map((sample) => ({ time: sample.time, values: values(sample), sample })), now, seconds);
    this.batches.show(this.steps.map((step) => ({ time: step.time, values: [step.decoding, step.prompt_tokens, step.drafted] })), now);
  }

  async #blocks() {
    this.last = await getJson("/inspector/arena", { model: this.model }, this.closing.signal);
    this.arena.show(this.last);
    const key = JSON.stringify(this.last.sequences);
    if (key === this.shown) return;
    this.shown = key;
    const { groups, sequences, slots } = this.last;
    if (groups.length > 1) this.blocks.note.textContent = "those that keep all tokens";
    const of = groups.length > 1 ? groups.map(({ window }) => `blocks, ${kept(window)}`) : ["blocks"];
    const heads = ["request", "prompt", "tokens", ...of, ...(slots ? ["state slots"] : [])];
    this.sequences.replaceChildren(sequences.length ? table(heads, sequences.map((sequence) => row(sequence, slots))) : element("p", { class: "hint", text: "None: nobody is being answered." }));
  }
}

/** Rates of all samples together: tokens by their seconds. */
function perSecond(points) {
  const seconds = points.reduce((sum, { sample }) => sum + sample.seconds, 0);
  return ["generated_per_second", "computed_per_second"].map((name) =>
    (seconds ? points.reduce((sum, { sample }) => sum + sample[name] * sample.seconds, 0) / seconds : null));
}

/** What the prefix cache had of all prompts of these samples. */
function hitRate(points) {
  const sum = (name) => points.reduce((total, { sample }) => total + sample[name], 0);
  return [sum("prompt_tokens") ? sum("cached_tokens") / sum("prompt_tokens") : null];
}

function row(sequence, slots) {
  const swatch = element("i", { class: "swatch" });
  swatch.style.backgroundColor = hue(sequence.id);
  const name = element("span", {}, swatch, ` ${sequence.request ?? "none"}`);
  const states = slots ? [sequence.slots.map(({ slot }) => slot).join(", ")] : [];
  return [name, sequence.prompt_tokens ?? "", sequence.tokens, ...sequence.groups.map(({ blocks }) => runTexts(blocks)), ...states];
}

// What differs between what two models compiled to: spec, plan, graphs, kernels with their lines, tensors, bytes, times.

import { getJson } from "../api.js";
import { button, element, labelled } from "../element.js";
import { codeBlock } from "../markdown.js";
import { load, models } from "../models.js";
import { bytes, count, micros } from "./numbers.js";
import { table } from "./op_panel.js";

/** The comparison of two models of this server. */
export class DiffPanel {
  constructor(node, model) {
    this.closing = new AbortController();
    const names = models().map((known) => known.name);
    const select = (value) => element("select", {}, ...names.map((name) => element("option", { value: name, text: name, selected: name === value })));
    this.a = select(model);
    this.b = select(names.find((name) => name !== model) ?? model);
    this.result = element("div", { class: "diff", "aria-live": "polite" });
    this.start = button("Compare", () => this.#compare());
    node.append(element("div", { class: "diff-tools" }, labelled("A", this.a), labelled("B", this.b), this.start), this.result);
    if (names.length < 2) this.result.append(element("p", { class: "notice", text: "This server has one model. Start it with several to compare them: mlxr serve --model NAME=A --model NAME=B" }));
  }

  close() {
    this.closing.abort();
  }

  async #compare() {
    const { signal } = this.closing;
    this.start.disabled = true;
    this.result.replaceChildren(element("p", { class: "hint", text: "Comparing …" }));
    try {
      for (const name of [this.a.value, this.b.value]) {
        if (models().find((model) => model.name === name)?.state !== "loaded") await load(name, signal);
      }
      const diff = await getJson("/inspector/diff", { a: this.a.value, b: this.b.value }, signal);
      this.result.replaceChildren(...sections(diff));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.result.replaceChildren(element("p", { class: "error", role: "alert", text: error.message }));
    }
    this.start.disabled = false;
  }
}

function sections(diff) {
  if (diff.same) return [element("p", { class: "notice", text: "Both compiled to the same, byte for byte." })];
  return [
    fold("Spec", diff.spec.length, fields(diff.spec), true),
    fold("Chip", diff.chip.length, fields(diff.chip)),
    fold("Plan: arena, types, batches", diff.plan.length, fields(diff.plan)),
    ...diff.graphs.map((graph) => fold(`Graph ${graph.graph} (${graph.ops_a} ops in A, ${graph.ops_b} in B)`, graph.changes.length,
      table(["change", "op", "kind", "layers", "what"], graph.changes.map((change) => [change.change, change.op, change.kind, layers(change.layers), said(change.fields)])))),
    ...diff.targets.map((target) => fold(`Kernels of ${target.target} (${target.same} are the same)`, target.changes.length,
      element("div", {}, ...target.changes.map(kernel)))),
    fold("Tensors", diff.weights.length, table(["change", "tensor", "layers", "bytes in A", "in B", "what"], diff.weights.map((weight) =>
      [weight.change, weight.tensor, layers(weight.layers), size(weight.bytes_a), size(weight.bytes_b), said(weight.fields)]))),
    ...diff.memory.map((memory) => {
      const differing = memory.sizes.filter((one) => one.a !== one.b).length;
      return fold(`Memory of ${memory.target}`, differing, table(["what", "A", "B", "B − A"], memory.sizes.map((one) =>
        [one.name, bytes(one.a), bytes(one.b), one.a === one.b ? "" : `${one.b > one.a ? "+" : "−"}${bytes(Math.abs(one.b - one.a))}`])), true);
    }),
    diff.time.steps.length > 0 && fold(`Predicted times on ${diff.time.chip}`, diff.time.steps.length, table(["step", "A", "B", "launches", "bytes", "FLOPs"], diff.time.steps.map((step) =>
      [step.step, micros(step.a.predicted_us), micros(step.b.predicted_us), both(step, "launches", String), both(step, "size_bytes", bytes), both(step, "flops", count)]))),
  ].filter(Boolean);
}

function kernel(change) {
  const lines = change.lines ? `, +${change.lines_added} −${change.lines_removed} lines` : "";
  return element("details", { class: "fold" }, element("summary", { text: `${change.change}: ${change.label}${lines}` }),
    change.fields.length > 0 && fields(change.fields), change.lines && codeBlock(change.lines, "diff"));
}

function fold(title, number, content, isOpen = false) {
  if (!number) return element("p", { class: "hint", text: `${title}: no difference` });
  return element("details", { class: "fold", open: isOpen }, element("summary", { text: `${title}: ${number} ${number === 1 ? "difference" : "differences"}` }), content);
}

function fields(changes) {
  return table(["field", "A", "B"], changes.map((change) => [change.path, value(change.a, change.change === "added"), value(change.b, change.change === "removed")]));
}

function said(changes) {
  return changes.map((change) => `${change.path}: ${value(change.a, change.change === "added")} → ${value(change.b, change.change === "removed")}`).join("; ");
}

function value(told, isMissing) {
  return isMissing ? "not there" : JSON.stringify(told);
}

function layers(told) {
  return told.length > 2 ? `${told[0]}–${told.at(-1)} (${told.length})` : told.join(", ");
}

function size(told) {
  return told === null ? "not there" : bytes(told);
}

function both(step, name, unit) {
  return step.a[name] === step.b[name] ? unit(step.a[name]) : `${unit(step.a[name])} → ${unit(step.b[name])}`;
}

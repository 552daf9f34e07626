// What is known of one op: its values, parts, launches with geometry and times, and the kernels' sources.

import { getJson } from "../api.js";
import { announce, button, element, labelled } from "../element.js";
import { copyButton, highlighted } from "../markdown.js";
import { bytes, count, micros } from "./numbers.js";

const STORE = "mlxr-chip";
const LANGUAGES = { metal: "Metal", cpu: "C" };
let chips = null;

/** The side panel of the chosen op. */
export class OpPanel {
  /** @param {{close: function, go: function(string, string)}} actions */
  constructor(node, model, signal, actions) {
    Object.assign(this, { node, model, signal, actions, chip: localStorage.getItem(STORE) ?? "" });
  }

  /** Shows an op. */
  async show(graph, id) {
    this.shown = [graph, id];
    this.node.replaceChildren(element("p", { class: "hint", text: "Loading …" }));
    try {
      chips ??= await getJson("/inspector/chips", {}, this.signal);
      if (!chips.some((chip) => chip.name === this.chip)) this.chip = "";
      const op = await getJson("/inspector/op", { model: this.model, graph, name: id, chip: this.chip }, this.signal);
      if (this.shown[0] !== graph || this.shown[1] !== id) return;
      this.node.replaceChildren(...this.#parts(op));
      announce(`${op.kind} ${id}: ${op.launches.length} launches`);
    } catch (error) {
      if (error.name !== "AbortError") this.node.replaceChildren(this.#close(), element("p", { class: "error", role: "alert", text: error.message }));
    }
  }

  #parts(op) {
    const attributes = Object.entries(op.attributes).filter(([, value]) => value !== null && value !== false);
    return [
      this.#close(), element("h2", { text: op.id }), element("p", { class: "about", text: `${op.kind}: ${op.summary}` }),
      op.layers.length > 1 && element("p", { class: "hint", text: `The same in layers ${op.layers[0]} to ${op.layers.at(-1)}.` }),
      op.parts.length > 0 && links("Computes these ops of the source graph", op.parts.map((id) => ["source", id]), this.actions.go),
      Object.keys(op.computed_by).length > 0 && links("After fusion it is part of", Object.entries(op.computed_by), this.actions.go, true),
      section("Values", table(["port", "value", "shape", "type"], [
        ...op.inputs.map((port) => [`in ${port.port}`, port.value, port.shape.join(" × "), `${port.dtype}, ${port.role}`]),
        ...op.outputs.map((port) => [`out ${port.port}`, port.value, port.shape.join(" × "), `${port.dtype}, ${port.role}`]),
      ])),
      attributes.length > 0 && section("Attributes", table(["name", "value"], attributes.map(([name, value]) => [name, JSON.stringify(value)])), true),
      op.graph !== "source" && this.#chips(op),
      ...op.launches.map((launch) => this.#launch(launch)),
    ].filter(Boolean);
  }

  #close() {
    return button("Close", () => this.actions.close(), { text: "×", class: "quiet close" });
  }

  #chips(op) {
    const select = element("select", { on: { change: () => { this.chip = select.value; localStorage.setItem(STORE, this.chip); this.show(...this.shown); } } },
      element("option", { value: "", text: "the artifact's own" }),
      ...chips.map((chip) => element("option", { value: chip.name, text: chip.title, selected: chip.name === this.chip })));
    return labelled("Predict times for", select, op.batch && `for ${op.batch}`);
  }

  #launch(launch) {
    const geometry = launch.grid.length
      ? [["Threadgroups", gridOf(launch)], ["Threads of each", launch.threads || "as the host chooses"],
        launch.threadgroup_bytes > 0 && ["Shared memory of each", bytes(launch.threadgroup_bytes)]]
      : [["Threads", "share the call"]];
    const facts = [
      ["When", launch.when], ...geometry,
      launch.weight_bytes > 0 && ["Weights read", bytes(launch.weight_bytes) + (launch.per_token ? " for each token" : "")],
      launch.size_bytes !== null && ["Bytes moved", bytes(launch.size_bytes)],
      launch.flops !== null && ["FLOPs", count(launch.flops)],
      launch.library.length > 0 && ["MLX instead", launch.library.join("; ")],
      launch.launched !== null && ["Launched here so far", count(launch.launched)],
      ...launch.measured.map((time) => [`Measured, ${time.scenario}`, `${micros(time.time_us)} on ${time.device}`]),
    ].filter(Boolean);
    const source = element("details", { class: "fold" }, element("summary", { text: `${LANGUAGES[launch.target] ?? launch.target} source` }));
    source.addEventListener("toggle", () => this.#source(source, launch), { once: true });
    return element("section", { class: "launch", "aria-label": `Launch ${launch.kernel}` },
      element("h3", { text: `${launch.kernel} (${launch.target}, launch ${launch.index})` }), list(facts),
      launch.prediction && prediction(launch.prediction),
      launch.sizes.length > 0 && section(`Geometry chosen for ${launch.site}`, table(["size", "value", "because"], launch.sizes.map((size) => [size.name, size.value, size.because || "the default"]))),
      source);
  }

  async #source(details, { target, kernel: name }) {
    const body = element("div", {}, element("p", { class: "hint", text: "Loading …" }));
    details.append(body);
    try {
      const kernel = await getJson("/inspector/kernel", { model: this.model, target, name }, this.signal);
      body.replaceChildren(element("figure", { class: "code" },
        element("figcaption", {}, element("span", { text: `${kernel.file}, ${kernel.num_lines} lines` }), copyButton(() => kernel.source, "Copy the source")),
        element("div", { class: "source", tabindex: "0", role: "region", "aria-label": `Source of ${name}` }, highlighted(kernel.html))));
    } catch (error) {
      if (error.name !== "AbortError") body.replaceChildren(element("p", { class: "error", role: "alert", text: error.message }));
    }
  }
}

function gridOf({ grid, threadgroups }) {
  const [formula, numbers] = [grid.join(" × "), threadgroups.join(" × ")];
  return formula === numbers ? formula : `${formula} = ${numbers}`;
}

function prediction(told) {
  const parts = [["memory", told.memory_us], ["compute", told.compute_us], ["launch", told.launch_us]];
  const most = Math.max(...parts.map(([, us]) => us), 1e-9);
  return element("div", { class: "prediction" },
    list([["Predicted", `${micros(told.predicted_us)} on ${told.chip}, bound by ${told.bound}`], ["Runs as", told.runs_as]]),
    ...parts.map(([name, us]) => element("div", { class: `time${name === told.bound ? " bound" : ""}` },
      element("span", { text: name }), element("meter", { min: 0, max: most, value: us, "aria-label": name }), element("span", { text: micros(us) }))));
}

function links(title, targets, go, tellsGraph = false) {
  return section(title, element("p", { class: "actions" }, ...targets.map(([graph, id]) =>
    button(tellsGraph ? `${graph}: ${id}` : id, () => go(graph, id), { class: "quiet link" }))));
}

function section(title, content, folds = false) {
  if (folds) return element("details", { class: "fold" }, element("summary", { text: title }), content);
  return element("section", {}, element("h3", { text: title }), content);
}

function list(facts) {
  return element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: String(value) })]));
}

/** A table of texts. */
export function table(heads, rows) {
  return element("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col", text: head })))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => (cell instanceof Node ? element("td", {}, cell) : element("td", { text: String(cell) }))))))));
}

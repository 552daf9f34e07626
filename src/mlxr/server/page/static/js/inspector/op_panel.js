// What is known of one op: its values, parts, launches with geometry and times, and the kernels' sources.

import { getJson, send } from "../api.js";
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
    const running = op.launches.find((launch) => launch.launched !== null)?.target;
    const [here, elsewhere] = [op.launches.filter((launch) => !running || launch.target === running), op.launches.filter((launch) => running && launch.target !== running)];
    const others = [...new Set(elsewhere.map((launch) => launch.target))];
    const attributes = Object.entries(op.attributes).filter(([, value]) => value !== null && value !== false);
    return [
      this.#close(), element("h2", { text: op.id }), element("p", { class: "about", text: `${op.kind}: ${op.summary}` }),
      op.layers.length > 1 && element("p", { class: "hint", text: `The same in layers ${op.layers[0]} to ${op.layers.at(-1)}.` }),
      op.parts.length > 0 && links("Computes these ops of the source graph", op.parts.map((id) => ["source", id]), this.actions.go),
      Object.keys(op.computed_by).length > 0 && links("After fusion it is part of", Object.entries(op.computed_by), this.actions.go, true),
      here.length > 0 && work(op, here),
      section("Values", table(["port", "value", "shape", "type"], [
        ...op.inputs.map((port) => [`in ${port.port}`, port.value, port.shape.join(" × "), `${port.dtype}, ${port.role}`]),
        ...op.outputs.map((port) => [`out ${port.port}`, port.value, port.shape.join(" × "), `${port.dtype}, ${port.role}`]),
      ])),
      attributes.length > 0 && section("Attributes", table(["name", "value"], attributes.map(([name, value]) => [name, JSON.stringify(value)])), true),
      running === "cpu" && this.#measure(here),
      ...here.map((launch) => this.#launch(launch, running)),
      op.graph !== "source" && this.#chips(op),
      ...others.map((target) => this.#others(target, elsewhere.filter((launch) => launch.target === target))),
    ].filter(Boolean);
  }

  /** Has the server time the calls of host cpu. */
  #measure(launches) {
    const isKnown = launches.some((launch) => launch.measured.length);
    const problem = element("span", { class: "error", role: "alert" });
    const start = button(isKnown ? "Measure again" : "Measure the calls on this machine", async () => {
      start.disabled = true;
      start.textContent = "Compiling with a clock, and measuring …";
      try {
        await send(`/inspector/measure?${new URLSearchParams({ model: this.model })}`, { method: "POST", signal: this.signal });
        this.show(...this.shown);
      } catch (error) {
        if (error.name === "AbortError") return;
        problem.textContent = error.message;
        start.textContent = "Measure the calls on this machine";
        start.disabled = false;
      }
    }, { class: "quiet measure" });
    return element("p", { class: "actions" }, start, problem);
  }

  /** The launches of a target that does not run here. */
  #others(target, launches) {
    return element("details", { class: "fold", open: Boolean(this.chip) && target === "metal" },
      element("summary", { text: `On target ${target}, which does not run here: ${launches.length} ${launches.length === 1 ? "launch" : "launches"}` }),
      ...launches.map((launch) => this.#launch(launch)));
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

  #launch(launch, running = null) {
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
      element("h3", { text: `${launch.kernel} (${launch.target}${launch.target === running ? ", which runs here" : ""}, launch ${launch.index})` }), list(facts),
      launch.prediction && prediction(launch.prediction),
      launch.sizes.length > 0 && chosenSizes(launch),
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

/** What the op costs in a step, on the target that is shown first. */
function work(op, launches) {
  const sum = (name) => launches.reduce((total, launch) => total + (launch[name] ?? 0), 0);
  const runs = launches.filter((launch) => launch.size_bytes !== null);
  return element("div", { class: "work" },
    ...[["Bytes moved", bytes(sum("size_bytes"))], ["FLOPs", count(sum("flops"))], ["Launches", runs.length],
      launches.some((launch) => launch.measured.length) && ["Measured", micros(launches.reduce((total, launch) => total + (launch.measured[0]?.time_us ?? 0), 0))],
      op.layers.length > 1 && ["In all layers", `${bytes(sum("size_bytes") * op.layers.length)}, ${count(sum("flops") * op.layers.length)}`]]
      .filter(Boolean).map(([name, value]) => element("span", {}, element("small", { text: name }), element("b", { text: String(value) }))),
    element("small", { class: "for", text: `on target ${launches[0].target}${op.batch ? `, for ${op.batch}` : ""}` }));
}

/** The sizes with a reason of their own; the others are folded. */
function chosenSizes(launch) {
  const [chosen, usual] = [launch.sizes.filter((size) => size.because), launch.sizes.filter((size) => !size.because)];
  return section(`Geometry chosen for ${launch.site}`, element("div", {},
    chosen.length > 0 && table(["size", "value", "because"], chosen.map((size) => [size.name, size.value, size.because])),
    usual.length > 0 && element("details", { class: "fold" },
      element("summary", { text: `${usual.length} ${chosen.length ? "others" : "sizes"} have their default` }), table(["size", "value"], usual.map((size) => [size.name, size.value])))));
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

// The op graphs before and after fusion: pan, zoom, arrow keys; an op that is chosen shows what is known of it.

import { getJson } from "../api.js";
import { button, element, svg } from "../element.js";
import { aboutGraph, legend } from "./graph_legend.js";
import { drawn, keyOf } from "./graph_picture.js";
import { OpPanel } from "./op_panel.js";
import { PanZoom } from "./pan_zoom.js";

const DIRECTIONS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/** The panel of the graphs of one model. */
export class GraphPanel {
  constructor(node, model) {
    this.model = model;
    this.closing = new AbortController();
    this.picture = svg("svg", { class: "graph", role: "group", "aria-label": "Op graphs. Arrow keys move between ops, Enter opens one, plus and minus zoom." });
    this.stage = element("div", { class: "stage" }, this.picture);
    this.side = element("aside", { class: "op", "aria-label": "The chosen op", tabindex: "-1", hidden: true });
    this.tools = element("div", { class: "graph-tools", role: "group", "aria-label": "View of the graphs" });
    this.about = element("p", { class: "graph-about" });
    this.around = element("div", { class: "graph-panel" }, element("div", { class: "stage-column" }, this.tools, this.about, this.stage, legend()), this.side);
    node.append(this.around);
    this.op = new OpPanel(this.side, model, this.closing.signal, {
      close: () => this.#choose(null), go: (graph, id) => this.#go(graph, id),
    });
    this.around.addEventListener("keydown", (event) => this.#key(event));
    this.#load();
  }

  close() {
    this.closing.abort();
    removeEventListener("resize", this.resized);
  }

  async #load() {
    try {
      this.graphs = await getJson("/inspector/graphs", { model: this.model }, this.closing.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.stage.replaceChildren(element("p", { class: "error", role: "alert", text: error.message }));
      return;
    }
    const { group, nodes, edges } = drawn(this.graphs);
    Object.assign(this, { nodes, edges });
    this.picture.append(group);
    this.view = new PanZoom(this.picture, group);
    this.picture.addEventListener("click", (event) => this.#click(event));
    this.picture.addEventListener("focusin", (event) => this.#focused(event));
    this.choices = new Map(this.graphs.graphs.map((graph) => [graph.name, button(graph.title, () => this.#look(graph.name), { class: "quiet" })]));
    this.choices.set("all", button("All graphs", () => this.#look("all"), { class: "quiet" }));
    this.tools.append(...this.choices.values(),
      button("Fit", () => this.#fit(0), { class: "quiet" }),
      button("Zoom in", () => this.view.zoom(1.3), { text: "+", class: "quiet" }),
      button("Zoom out", () => this.view.zoom(1 / 1.3), { text: "−", class: "quiet" }),
      element("small", { text: "Click an op for its kernels; drag or scroll to move, Ctrl and scroll to zoom." }));
    this.#look("decode");
    this.resized = () => this.chosen || this.#fit();
    addEventListener("resize", this.resized);
  }

  /** Shows one graph, large enough to be read; or all, as large as they fit. */
  #look(name) {
    this.shown = name;
    this.about.textContent = `${aboutGraph(name)} Layers that are alike are drawn once.`;
    for (const [other, choice] of this.choices) choice.setAttribute("aria-pressed", String(other === name));
    for (const graph of this.graphs.graphs) this.picture.querySelector(`.graph-${graph.name}`).classList.toggle("away", !this.#sees(graph));
    if (!this.current || !this.#sees(this.current.graph)) this.#makeCurrent([...this.nodes.values()].find((place) => this.#sees(place.graph)));
    this.#fit();
  }

  #sees(graph) {
    return this.shown === "all" || graph.name === this.shown;
  }

  /** Fits what is shown; `least`: the smallest scale, beyond which one moves to see the rest. */
  #fit(least = this.shown === "all" ? 0.55 : 1) {
    const { top, height, width } = this.graphs;
    const one = this.graphs.graphs.find((graph) => graph.name === this.shown);
    this.view.fit({ x: one?.x ?? 0, y: top, width: one?.width ?? width, height: height - top }, one ? 1.4 : 1, least);
  }

  #makeCurrent(place) {
    this.current?.shape.setAttribute("tabindex", "-1");
    place.shape.setAttribute("tabindex", "0");
    this.current = place;
  }

  #click(event) {
    if (this.view.moved) return;
    const shape = event.target.closest(".node");
    this.#choose(shape && this.#of(shape));
  }

  #focused(event) {
    const place = this.#of(event.target.closest(".node"));
    if (!place) return;
    this.#makeCurrent(place);
    if (place.shape.matches(":focus-visible")) this.view.reveal(place.node);
  }

  #key(event) {
    if (event.key === "Escape" && this.chosen) {
      this.#choose(null);
    } else if (this.picture.contains(event.target)) {
      const direction = DIRECTIONS[event.key];
      if (direction) this.#step(direction);
      else if (event.key === "Enter" || event.key === " ") this.#choose(this.current, true);
      else if (event.key === "+" || event.key === "=") this.view.zoom(1.3);
      else if (event.key === "-") this.view.zoom(1 / 1.3);
      else if (event.key === "0") this.#fit(0);
      else return;
      event.preventDefault();
    }
  }

  /** Goes to the nearest op; beside the graph that is shown alone, to the next graph. */
  #step(direction) {
    const place = this.#nearest(direction);
    if (!place) return;
    if (!this.#sees(place.graph)) this.#look(place.graph.name);
    place.shape.focus();
  }

  /** The nearest op in a direction: what lies aside counts double. */
  #nearest([right, down]) {
    const from = centre(this.current.node);
    let best = null;
    for (const place of this.nodes.values()) {
      const to = centre(place.node);
      const [x, y] = [to.x - from.x, to.y - from.y];
      const ahead = x * right + y * down;
      const aside = Math.abs(x * down) + Math.abs(y * right);
      if (ahead <= 1 || (down && place.graph !== this.current.graph)) continue;
      const cost = ahead + 2 * aside;
      if (!best || cost < best.cost) best = { place, cost };
    }
    return best?.place;
  }

  #go(graph, id) {
    const place = this.nodes.get(keyOf(graph, id));
    if (!place) return;
    if (!this.#sees(place.graph)) this.#look(graph);
    this.#choose(place);
    this.view.reveal(place.node);
    place.shape.focus();
  }

  #choose(place, moves = false) {
    const before = this.chosen;
    this.chosen = place;
    const related = place ? this.#related(place) : new Set();
    for (const [key, { shape }] of this.nodes) {
      shape.classList.toggle("related", related.has(key));
      shape.classList.toggle("dim", Boolean(place) && !related.has(key) && shape !== place.shape);
      shape.setAttribute("aria-pressed", String(shape === place?.shape));
    }
    for (const { edge, graph, shape } of this.edges) {
      shape.classList.toggle("near", graph === place?.graph && [edge.source, edge.target].includes(place.node.id));
    }
    const width = this.stage.clientWidth;
    this.side.hidden = !place;
    this.view.pan((this.stage.clientWidth - width) / 2, 0); // what was in the middle stays there
    if (!place) return void before?.shape.focus();
    this.op.show(place.graph.name, place.node.id);
    if (moves) this.side.focus();
    requestAnimationFrame(() => this.view.reveal(place.node));
    return undefined;
  }

  /** The ops of other graphs that compute the same. */
  #related({ node, graph }) {
    if (graph.name === "source") return new Set(Object.entries(node.fused_into).map(([phase, id]) => keyOf(phase, id)));
    const parts = new Set(node.parts.map((part) => part.id));
    const same = [...this.nodes].filter(([, other]) => other.graph !== graph && other.node.parts.some((part) => parts.has(part.id)));
    return new Set([...[...parts].map((id) => keyOf("source", id)), ...same.map(([key]) => key)]);
  }

  #of(shape) {
    return shape && [...this.nodes.values()].find((place) => place.shape === shape);
  }
}

function centre({ x, y, width, height }) {
  return { x: x + width / 2, y: y + height / 2 };
}

// The op graphs as SVG, at the coordinates that the server computed.

import { svg } from "../element.js";

const ARROWS = ["value", "arena", "token"];

/**
 * Draws the graphs.
 * @param {Object} graphs as /inspector/graphs gives them.
 * @returns {{group: SVGGElement, nodes: Map<string, {node: Object, graph: Object, shape: SVGGElement}>, edges: Object[]}}
 *   `nodes` by `GRAPH ID`.
 */
export function drawn(graphs) {
  const nodes = new Map();
  const edges = [];
  const group = svg("g", {}, svg("defs", {}, ...ARROWS.map(arrow)), ...graphs.graphs.map((graph) => column(graphs, graph, nodes, edges)));
  return { group, nodes, edges };
}

/** The key of an op in `nodes`. */
export function keyOf(graph, id) {
  return `${graph} ${id}`;
}

function column(graphs, graph, nodes, edges) {
  const { x, width } = graph;
  const { top } = graphs;
  return svg("g", { class: `graph-${graph.name}`, role: "group", "aria-label": `${graph.title}, ${graph.about}: ${graph.counts}` },
    svg("rect", { class: "column", x, y: top, width, height: graphs.height - top - 8, rx: 7 }),
    text("heading", x + 12, top + 23, graph.title), text("about", x + 12, top + 40, graph.about),
    text("counts", x + width - 12, top + 23, graph.counts),
    ...graph.frames.flatMap((frame) => [box("frame", frame, 6), text("layers", frame.x + frame.width - 8, frame.y + 15, frame.label)]),
    ...graph.bands.map((band) => box(`band ${band.family}`, band, 8)),
    ...graph.edges.map((edge) => line(graph, edge, edges)),
    ...graph.arenas.flatMap((arena) => [box("store", arena, 8), text("store-text", middle(arena), arena.y + 14.5, "KV"), text("store-text", middle(arena), arena.y + 26, "arena")]),
    ...graph.nodes.map((node) => op(graph, node, nodes)),
    ...graph.labels.map(label));
}

function op(graph, node, nodes) {
  const layers = graph.frames.find((frame) => frame.layers.includes(node.layer))?.layers.length ?? 1;
  const parts = node.parts.length > 1 ? `, fused of ${node.parts.map((part) => part.kind).join(", ")}` : "";
  const shape = svg("g", {
    class: "node", role: "button", tabindex: "-1", "aria-pressed": "false",
    "aria-label": `${graph.title}: ${node.kind} ${node.label}${layers > 1 ? `, in ${layers} layers` : ""}${parts}`,
  }, box(`box ${node.family}`, node, 6), ...node.texts.map((line) => text(line.style, line.x, line.y, line.text)),
    ...node.chips.flatMap((chip) => [
      svg("rect", { class: `box ${chip.family}`, x: chip.x, y: chip.y, width: chip.width, height: 16, rx: 8 }),
      text("chip", chip.x + chip.width / 2, chip.y + 11.3, chip.text),
    ]));
  nodes.set(keyOf(graph.name, node.id), { node, graph, shape });
  return shape;
}

function line(graph, edge, edges) {
  const marker = `url(#${edge.kind}-arrow)`;
  const shape = svg("path", {
    class: `edge ${edge.kind}`, d: edge.path, "marker-start": edge.arrows === "both" && marker, "marker-end": edge.arrows !== "none" && marker,
  });
  edges.push({ edge, graph, shape });
  return shape;
}

function label({ x, y, width, text: words, kind, terminal }) {
  const name = !terminal ? "pill" : kind === "token" ? "token-pill" : "terminal";
  return svg("g", {}, svg("rect", { class: name, x: x - width / 2, y, width, height: 14, rx: 7 }),
    text(terminal ? "terminal-text" : "pill-text", x, y + 10.3, words));
}

function arrow(kind) {
  return svg("marker", {
    id: `${kind}-arrow`, viewBox: "0 0 8 8", refX: 7.2, refY: 4, markerWidth: 7, markerHeight: 7,
    markerUnits: "userSpaceOnUse", orient: "auto-start-reverse",
  }, svg("path", { class: `${kind}-head`, d: "M0.5 0.8L7.5 4L0.5 7.2Z" }));
}

function box(name, { x, y, width, height }, radius) {
  return svg("rect", { class: name, x, y, width, height, rx: radius });
}

function text(name, x, y, words) {
  return svg("text", { class: name, x, y, text: words });
}

function middle({ x, width }) {
  return x + width / 2;
}

// The inspector: what the chosen model compiled to, what it does now, and what differs between two models.

import { button, element } from "../element.js";
import { chosen, load, onChange } from "../models.js";
import { DiffPanel } from "./diff_panel.js";
import { GraphPanel } from "./graph_panel.js";
import { LivePanel } from "./live_panel.js";
import { RequestsPanel } from "./requests_panel.js";

const PANELS = [["graph", "Graph", GraphPanel], ["live", "Live", LivePanel], ["requests", "Requests", RequestsPanel], ["compare", "Compare", DiffPanel]];

/** The inspector on the page. A panel is made when it is first looked at, and anew for another model. */
export class InspectorView {
  /** @param {HTMLElement} node */
  constructor(node) {
    this.node = node;
    this.panel = null;
    this.tabs = PANELS.map(([name, title]) => button(title, () => { location.hash = `#/inspector/${name}`; }, {
      role: "tab", id: `tab-${name}`, "aria-controls": "panel", class: "quiet",
    }));
    this.body = element("div", { id: "panel", role: "tabpanel", class: "panel" });
    node.append(element("div", { class: "panel-tabs", role: "tablist", "aria-label": "Views", on: { keydown: (event) => this.#arrow(event) } }, ...this.tabs), this.body);
    onChange(() => this.#look());
  }

  /** Shows a view of this name; null: the inspector is not shown. */
  show(name) {
    this.name = name === null ? null : PANELS.find(([known]) => known === name)?.[0] ?? "graph";
    this.#look();
  }

  #look() {
    const model = chosen();
    const key = this.name === null ? null : `${this.name} ${model?.name} ${model?.state === "loaded"}`;
    if (key === this.key) return;
    this.key = key;
    this.panel?.close();
    this.panel = null;
    this.body.replaceChildren();
    if (this.name === null) return;
    for (const [at, [name]] of PANELS.entries()) {
      this.tabs[at].setAttribute("aria-selected", String(name === this.name));
      this.tabs[at].tabIndex = name === this.name ? 0 : -1;
    }
    this.body.setAttribute("aria-labelledby", `tab-${this.name}`);
    if (!model) this.body.append(element("p", { class: "notice", text: "This server has no models." }));
    else if (model.state !== "loaded") this.body.append(this.#notLoaded(model));
    else this.panel = new (PANELS.find(([name]) => name === this.name)[2])(this.body, model.name);
  }

  #notLoaded(model) {
    const problem = element("p", { class: "error", role: "alert" });
    const start = button(`Load ${model.name}`, async () => {
      start.disabled = true;
      try {
        await load(model.name);
      } catch (error) {
        problem.textContent = error.message;
      }
      start.disabled = false;
    });
    return element("div", { class: "notice" }, element("p", { text: `${model.name} is not loaded. The inspector shows what a loaded model compiled to.` }), start, problem);
  }

  #arrow(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = this.tabs[(this.tabs.indexOf(document.activeElement) + step + this.tabs.length) % this.tabs.length];
    next.focus();
    next.click();
  }
}

// The newest requests to a model, and of each where its time went.

import { getJson } from "../api.js";
import { button, element } from "../element.js";
import { micros, short } from "./numbers.js";
import { table } from "./op_panel.js";

const AGAIN_MS = 2000;
const MOST = 50;

/** The requests of one model. */
export class RequestsPanel {
  constructor(node, model) {
    this.model = model;
    this.closing = new AbortController();
    this.problem = element("p", { class: "error", role: "alert" });
    this.list = element("div");
    this.detail = element("section", { class: "chart", "aria-label": "The chosen request", hidden: true });
    node.append(element("h2", { class: "hidden", text: `Requests to ${model}` }), this.problem,
      element("div", { class: "charts" }, element("section", { class: "chart" }, element("h3", { text: "Newest requests" }), this.list), this.detail));
    this.#repeat();
  }

  close() {
    this.closing.abort();
  }

  async #repeat() {
    while (!this.closing.signal.aborted) {
      try {
        if (!document.hidden) await this.#read();
        this.problem.textContent = "";
      } catch (error) {
        if (error.name === "AbortError") return;
        this.problem.textContent = error.message;
      }
      await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    }
  }

  async #read() {
    const { requests } = await getJson("/requests", { model: this.model, limit: MOST }, this.closing.signal);
    const key = requests.map(({ request_id: id, time }) => `${id} ${time}`).join();
    if (key === this.shown) return; // so that the focus stays where it is
    this.shown = key;
    const heads = ["request", "took", "first token", "prompt", "of it cached", "answer", "most of the time"];
    this.list.replaceChildren(requests.length ? table(heads, requests.map((told) => this.#row(told))) : element("p", { class: "hint", text: "None has ended yet." }));
  }

  #row(told) {
    const name = button(told.request_id, () => this.#show(told.request_id), { class: "quiet" });
    const first = told.first_token_ms === null ? "" : milliseconds(told.first_token_ms);
    return [name, milliseconds(told.ms), first, told.prompt_tokens, told.cached_tokens, told.completion_tokens, told.why ?? told.error ?? ""];
  }

  async #show(id) {
    try {
      this.#fill(await getJson(`/requests/${encodeURIComponent(id)}`, {}, this.closing.signal));
    } catch (error) {
      if (error.name !== "AbortError") this.problem.textContent = error.message;
    }
  }

  #fill(told) {
    const parts = Object.entries(told.spent_ms).map(([cause, ms]) => {
      const meter = element("meter", { min: 0, max: Math.max(told.ms, 0.001), value: ms, "aria-label": cause });
      return [cause, milliseconds(ms), `${short(100 * ms / Math.max(told.ms, 0.001))} %`, meter];
    });
    const launches = told.launches.map((one) => [one.op, one.phase, one.times, micros(one.time_us), micros(one.limit_us), `${short(100 * one.share_of_limit)} %`]);
    this.detail.hidden = false;
    this.detail.replaceChildren(element("h3", { text: told.request_id }),
      element("p", { text: `${milliseconds(told.ms)}, most of it ${told.why ?? "of nothing known"}.` }),
      element("p", { text: missed(told) }),
      table(["cause", "time", "share", ""], parts),
      element("h3", { text: "Launches furthest from their roofline" }),
      launches.length ? table(["op", "phase", "times", "took", "limit", "of the limit"], launches) : element("p", { class: "hint", text: "None was timed: an op in the graph has a button that does." }));
  }
}

function milliseconds(ms) {
  return ms < 1000 ? `${short(ms)} ms` : `${short(ms / 1000)} s`;
}

/** What the prefix cache lacked of a prompt. */
function missed(told) {
  if (told.missed_tokens === null) return "";
  const count = `The prefix cache lacked ${told.missed_tokens} of ${told.prompt_tokens} tokens of the prompt`;
  return told.differs_at === null ? `${count}.` : `${count}; what it had differed from token ${told.differs_at} on.`;
}

// How much of the context a conversation fills, with what the user is writing.

import { send } from "./api.js";
import { element } from "./element.js";
import { bodyOf } from "./generate.js";

const PAUSE_MS = 600; // after the last key

/** A meter with its numbers. */
export class ContextMeter {
  constructor() {
    this.bar = element("meter", { min: 0, "aria-label": "Context used" });
    this.text = element("span");
    this.node = element("p", { class: "context", hidden: true }, this.bar, this.text);
    this.timer = null;
    this.asked = 0;
  }

  /** Shows so many tokens of a context. */
  show(used, context) {
    this.asked += 1; // what was asked before is old
    clearTimeout(this.timer);
    this.#show(used, context);
  }

  /**
   * Asks the server soon how many tokens a request has, and shows that.
   * @param {function(): Object|null} request as for `generate`; null: there is nothing to count.
   * @param {number} context tokens that there are.
   */
  ask(request, context) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#ask(request(), context), PAUSE_MS);
  }

  /** Shows only how long the context may be. */
  unknown(context) {
    this.show(null, context);
  }

  async #ask(request, context) {
    const asked = this.asked += 1;
    if (!request) return void this.#show(null, context);
    try {
      const { model, prompt, messages, tools, chat_template_kwargs } = bodyOf(request);
      const response = await send("/tokenize", { body: { model, prompt, messages, tools, chat_template_kwargs } });
      const { count, max_model_len: most } = await response.json();
      if (asked === this.asked) this.#show(count, most);
    } catch {
      if (asked === this.asked) this.#show(null, context); // whoever sends it is told why it cannot be
    }
  }

  #show(used, context) {
    this.node.hidden = !context;
    if (!context) return;
    this.bar.hidden = used === null;
    Object.assign(this.bar, { max: context, low: context * 0.7, high: context * 0.9, optimum: 0, value: used ?? 0 });
    this.text.textContent = used === null ? `context of ${context.toLocaleString("en")} tokens`
      : `${used.toLocaleString("en")} of ${context.toLocaleString("en")} tokens${used > context ? ": too long" : ""}`;
  }
}

// Where the user writes, attaches files, and sends.

import { readAttachment } from "./attachments.js";
import { ContextMeter } from "./context_meter.js";
import { button, element, svg } from "./element.js";

const KEYS = "Enter sends, Shift+Enter begins a line, Escape stops.";
const CLIP = "M13.5 6.5l-5.8 5.8a1.8 1.8 0 0 0 2.5 2.5l6-6a3.4 3.4 0 0 0-4.8-4.8l-6 6a5 5 0 0 0 7.1 7.1l5-5";

/** The composer. Files that are dropped on `place` are attached, too. */
export class Composer {
  /** @param {{submit: function(): void, changed: function(): void, isRunning: function(): boolean}} actions */
  constructor(place, actions) {
    this.actions = actions;
    this.attachments = [];
    this.area = element("textarea", { rows: 1, id: "composer", "aria-label": "Message", "aria-describedby": "composer-hint" });
    this.send = element("button", { type: "submit", text: "Send" });
    this.hint = element("p", { class: "hint", id: "composer-hint" });
    this.meter = new ContextMeter();
    this.files = element("ul", { class: "attachments", "aria-label": "Attached files", hidden: true });
    this.problem = element("p", { class: "error", role: "alert" });
    const input = element("input", { type: "file", multiple: true, class: "hidden", "aria-label": "Files to attach", tabindex: "-1" });
    input.addEventListener("change", () => { this.#attach([...input.files]); input.value = ""; });
    const clip = button("Attach text files or PDF", () => input.click(), { text: "", class: "quiet clip" });
    clip.append(svg("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true" }, svg("path", { class: "drawn", d: CLIP })));
    this.node = element("form", { class: "composer", on: { submit: (event) => { event.preventDefault(); actions.submit(); } } },
      this.files, this.problem, clip, input, this.area, this.send, element("div", { class: "below" }, this.hint, this.meter.node));
    this.area.addEventListener("input", () => actions.changed());
    this.area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!actions.isRunning()) actions.submit(); }
    });
    this.area.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) { event.preventDefault(); this.#attach([...event.clipboardData.files]); }
    });
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    place.addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
    place.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.#attach([...event.dataTransfer.files]);
    });
  }

  /** What is written, if there is something. */
  get draft() {
    const [content, { attachments }] = [this.area.value, this];
    return content.trim() || attachments.length ? { role: "user", content, ...(attachments.length && { attachments }) } : null;
  }

  /** Empties it. */
  clear() {
    this.area.value = "";
    this.attachments = [];
    this.#showFiles();
  }

  /** Shows what the button does and what can be written. */
  show(isRunning, isText) {
    this.send.textContent = isRunning ? "Stop" : "Send";
    this.area.placeholder = isText ? "Begin a text; the model continues it" : "Write a message";
    this.hint.textContent = isText ? `This model continues texts: it has no chat template. ${KEYS}` : KEYS;
  }

  async #attach(files) {
    this.problem.textContent = "";
    for (const file of files) {
      try {
        this.attachments = [...this.attachments, await readAttachment(file)];
      } catch (error) {
        this.problem.textContent = error.message;
      }
      this.#showFiles();
    }
    this.area.focus();
  }

  #showFiles() {
    this.files.hidden = !this.attachments.length;
    this.files.replaceChildren(...this.attachments.map((file) => element("li", {}, `${file.name} `,
      button(`Remove ${file.name}`, () => {
        this.attachments = this.attachments.filter((other) => other !== file);
        this.#showFiles();
      }, { text: "×", class: "quiet" }))));
    this.actions.changed();
  }
}

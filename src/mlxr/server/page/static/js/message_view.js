// One message of a conversation on the page.

import { children, isEmpty, openCalls } from "./conversation.js";
import { button, element } from "./element.js";
import { LoadingStages } from "./loading_stages.js";
import { Markdown, codeBlock, copyButton } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Result of a tool" };
const REASONS = {
  length: "cut at max tokens", context: "the context is full (mlxr serve --context N gives more room)", stopped: "stopped",
  tool_calls: "waits for results",
};

/** Shows one message, and shows it again as it grows. */
export class MessageView {
  /**
   * @param {Object} chat what the buttons do: `edit`, `regenerate`, `retry`, `dropOldest`, `turn`, `resume`,
   *   `sendResults`, `isText`.
   * @param {Object} conversation
   * @param {Object} message
   * @param {boolean} isSent whether the model is sent the message when the conversation goes on.
   */
  constructor(chat, conversation, message, isSent) {
    Object.assign(this, { chat, conversation, message });
    const isMarkdown = message.role === "assistant" && !chat.isText;
    this.body = element("div", { class: isMarkdown ? "content" : "content plain" });
    this.reasoning = element("details", { class: "fold", hidden: true }, element("summary"), element("div", { class: "plain" }));
    this.calls = element("div");
    this.loading = element("ol", { class: "stages", "aria-label": "The model is being loaded", hidden: true });
    this.problem = element("div", { class: "error", role: "alert", hidden: true });
    this.foot = element("div", { class: "foot" });
    const name = message.role === "assistant" && message.model ? message.model : NAMES[message.role];
    this.node = element("article", { class: `message ${message.role}${isSent ? "" : " unsent"}`, "aria-label": NAMES[message.role] },
      element("h3", { text: isSent ? name : `${name} · no longer sent to the model: the context was full` }),
      ...(message.attachments ?? []).map(attachment), this.loading, this.reasoning, this.body, this.calls, this.problem, this.foot);
    this.markdown = isMarkdown ? new Markdown(this.body) : null;
    this.show(false);
  }

  /** Shows the message as it is now; `isGrowing`: more of it is coming. */
  show(isGrowing) {
    const { message } = this;
    this.node.setAttribute("aria-busy", String(isGrowing));
    this.node.classList.toggle("growing", isGrowing);
    if (this.markdown) this.markdown.show(message.content);
    else if (this.body.textContent !== message.content) this.body.textContent = message.content;
    const isLoading = isGrowing && message.loading instanceof LoadingStages;
    this.loading.hidden = !isLoading;
    if (isLoading) this.loading.replaceChildren(...message.loading.lines().map(stage));
    this.body.hidden = isLoading || (!message.content && !isGrowing);
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      const words = message.reasoning.trim().split(/\s+/).length;
      this.reasoning.firstChild.textContent = isGrowing && !message.content ? `Reasoning… ${words} words` : `Reasoning, ${words} words`;
      this.reasoning.lastChild.textContent = message.reasoning;
    }
    this.problem.hidden = !message.error;
    this.problem.textContent = message.error ?? "";
    if (message.waiting && isGrowing) this.body.dataset.waiting = message.waiting; else delete this.body.dataset.waiting;
    this.#showCalls(isGrowing);
    this.foot.replaceChildren(...(isGrowing ? [] : this.#tools()));
  }

  /** Lets the user change the text. */
  edit() {
    const { message, chat } = this;
    const area = element("textarea", { rows: 4, value: message.content, "aria-label": "The message's text" });
    const close = () => {
      form.replaceWith(this.body);
      this.foot.hidden = false;
      this.show(false);
      [...this.foot.querySelectorAll("button")].find((other) => other.textContent === "Edit")?.focus();
    };
    const done = (event) => { event.preventDefault(); close(); if (area.value !== message.content) chat.edit(message, area.value); };
    const form = element("form", { class: "edit", on: { submit: done } }, area,
      element("p", { class: "actions" }, element("button", { type: "submit", text: message.role === "assistant" ? "Keep as a branch" : "Send as a branch" }),
        button("Cancel", close, { class: "quiet" })));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    this.body.replaceWith(form);
    this.foot.hidden = true;
    area.focus();
  }

  #showCalls(isGrowing) {
    const calls = this.message.toolCalls ?? [];
    const open = new Set(isGrowing ? [] : openCalls(this.conversation, this.message).map((call) => call.id));
    const key = JSON.stringify([calls, [...open]]);
    if (key === this.shownCalls) return;
    this.shownCalls = key;
    const results = new Map();
    this.calls.replaceChildren(...calls.map((call) => {
      const isOpen = open.has(call.id);
      const result = element("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "what the tool gives back" });
      if (isOpen) results.set(call.id, result);
      return element("details", { class: "fold", open: isOpen },
        element("summary", { text: `Calls ${call.name}` }), codeBlock(indented(call.arguments), "json"), isOpen && result);
    }));
    if (!results.size) return;
    this.calls.append(element("p", { class: "actions" }, button("Send the results", () =>
      this.chat.sendResults([...results].map(([id, area]) => ({ id, content: area.value }))))));
  }

  #tools() {
    const { chat, message, conversation } = this;
    const siblings = children(conversation, message.parent);
    const at = siblings.findIndex((other) => other.id === message.id);
    const step = (label, text, by) => button(label, () => chat.turn(message, by), { text, class: "quiet", disabled: !siblings[at + by] });
    const isAnswer = message.role === "assistant";
    const isOnlyError = isAnswer && isEmpty(message) && (message.error || message.finishReason === "stopped");
    return [
      siblings.length > 1 && element("span", { class: "branches", role: "group", "aria-label": "Branches" },
        step("Previous branch", "‹", -1), element("span", { text: `${at + 1} / ${siblings.length}` }), step("Next branch", "›", 1)),
      message.content && copyButton(() => message.content, "Copy the text"),
      isOnlyError && button("Retry", () => chat.retry(message), { class: "quiet" }),
      message.role !== "tool" && !isOnlyError && button("Edit", () => this.edit(), { class: "quiet" }),
      isAnswer && !isOnlyError && button("Regenerate", () => chat.regenerate(message), { class: "quiet" }),
      isAnswer && chat.canResume(message) && button("Continue", () => chat.resume(message), { class: "quiet" }),
      isAnswer && chat.canDrop(message) && button("Go on without the oldest turns", () => chat.dropOldest(message), { class: "quiet" }),
      element("small", { text: noteOf(message) }),
    ].filter(Boolean);
  }
}

function attachment({ name, text }) {
  return element("details", { class: "fold" }, element("summary", { text: `${name}, ${text.length.toLocaleString("en")} characters` }), element("div", { class: "plain", text }));
}

function stage({ text, seconds, isDone }) {
  return element("li", { class: isDone ? "done" : "now" }, element("span", { text }), element("small", { text: `${seconds} s` }));
}

function noteOf({ stats, finishReason }) {
  const notes = [];
  if (stats?.tokens) notes.push(`${stats.tokens} tokens`);
  if (stats?.perSecond) notes.push(`${stats.perSecond.toFixed(stats.perSecond < 10 ? 1 : 0)} a second`);
  if (stats?.firstMs) notes.push(`the first after ${stats.firstMs < 1000 ? `${Math.round(stats.firstMs)} ms` : `${(stats.firstMs / 1000).toFixed(1)} s`}`);
  if (stats?.cached) notes.push(`${stats.cached} of ${stats.prompt} prompt tokens cached`);
  if (Object.hasOwn(REASONS, finishReason ?? "")) notes.push(REASONS[finishReason]);
  return notes.join(" · ");
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

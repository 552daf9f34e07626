// The chat: the list of conversations, the messages of one, its settings, and where the user writes.

import { fill, modeOf } from "./answering.js";
import { Composer } from "./composer.js";
import { add, newConversation, path, pathTo, sent, tip, turn, withoutOldest } from "./conversation.js";
import { ConversationList } from "./conversation_list.js";
import { button, element } from "./element.js";
import { MessageView } from "./message_view.js";
import { choose, chosen, onChange } from "./models.js";
import { SettingsView } from "./settings_view.js";
import * as storage from "./storage.js";

const EXAMPLES = {
  chat: ["Tell me a story about a fox and a crow.", "Why is the sky blue?"],
  text: ["Once upon a time, in a small house at the edge of the forest, there lived"],
};
const SHOW_MS = 60; // between two pictures of a growing answer
const SAVE_MS = 1000; // between two times that it is saved

/** The chat on the page. */
export class ChatView {
  /** @param {HTMLElement} node */
  constructor(node) {
    this.running = new Map(); // of conversations' ids: {controller, message}
    this.views = new Map(); // of the shown messages
    this.list = element("nav", { class: "side", id: "list", "aria-label": "Conversations" });
    this.conversationList = new ConversationList(this);
    this.list.append(this.#head("Conversations"), this.conversationList.node);
    this.settings = element("aside", { class: "side end", id: "settings", "aria-label": "Settings" });
    this.log = element("div", { class: "log", role: "log", "aria-live": "polite", "aria-label": "Messages", tabindex: "0" });
    this.problem = element("p", { class: "error", role: "alert" });
    const talk = element("div", { class: "talk" });
    this.composer = new Composer(talk, {
      submit: () => this.#submit(), changed: () => this.#measure(), isRunning: () => this.running.has(this.current.id),
    });
    this.area = this.composer.area;
    this.drawers = [this.#drawer("Conversations", this.list), this.#drawer("Settings", this.settings)];
    talk.append(element("div", { class: "talk-bar" }, this.drawers[0], this.title = element("h2"), this.problem, this.drawers[1]), this.log, this.composer.node);
    node.append(this.list, talk, this.settings);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !node.hidden && !document.querySelector("dialog[open]")) this.#escape();
    });
    document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".side, .drawer")) this.#close(); });
    onChange(() => { if (this.current) this.#modelChanged(); });
  }

  /** Reads the conversations, and shows the newest one. */
  async start() {
    this.conversations = await storage.all();
    this.current = this.conversations[0] ?? this.#added(newConversation());
    if (!(await storage.isKept())) this.problem.textContent = "This browser keeps nothing: conversations end with this page.";
    this.#show();
  }

  /** Whether the current conversation continues texts. */
  get isText() {
    return modeOf(this.current, chosen()?.name) === "text";
  }

  create() {
    const empty = this.conversations.find((conversation) => !Object.keys(conversation.messages).length);
    const { mode, system, settings, tools } = this.current;
    this.open(empty ?? this.#added(newConversation({ mode, system, settings, tools })));
    this.area.focus();
  }

  open(conversation) {
    this.current = conversation;
    const last = path(conversation).findLast((message) => message.model);
    if (last) choose(last.model);
    this.#close();
    this.#show();
  }

  async remove(conversation) {
    this.running.get(conversation.id)?.controller.abort();
    this.conversations = this.conversations.filter((other) => other !== conversation);
    await storage.remove(conversation.id);
    if (conversation === this.current) this.current = this.conversations[0] ?? this.#added(newConversation());
    this.#show();
  }

  rename(conversation, title) {
    conversation.title = title;
    this.#changed(conversation);
    this.#showList();
  }

  take(conversations) {
    for (const conversation of conversations) this.#added(conversation);
    if (conversations.length) this.open(conversations[0]);
  }

  /** Puts another text beside a message, as a branch; one of the user is answered. */
  edit(message, content) {
    this.#stop();
    const { role, model, reasoning, toolCallId, attachments } = message;
    const branch = add(this.current, message.parent, { role, content, model, reasoning, toolCallId, attachments });
    if (role === "assistant") this.#changed(this.current);
    else this.#answer(branch.id);
    this.#show();
  }

  regenerate(message) {
    this.#stop();
    this.#answer(message.parent, message.sentFrom);
  }

  /** Asks again for an answer of which nothing has come. */
  retry(message) {
    if (message.id !== tip(this.current)) return void this.regenerate(message);
    message.model = chosen()?.name ?? message.model;
    this.#fill(message, pathTo(this.current, message.parent));
  }

  /** Whether the context is full, and has turns before the last one. */
  canDrop(message) {
    const isFull = message.errorCode === "context_length_exceeded" || message.finishReason === "context";
    return isFull && this.#isLast(message) && withoutOldest(sent(path(this.current))).length > 0;
  }

  /** Goes on with an answer, or asks again for it, without the oldest turns. */
  dropOldest(message) {
    this.#fill(message, pathTo(this.current, message.parent), { continues: Boolean(message.content.trim()), drops: true });
  }

  turn(message, step) {
    turn(this.current, message.id, step);
    this.#changed(this.current);
    this.#show();
  }

  /** Whether an answer can go on where it ended: the server takes no beginning without text. */
  canResume(message) {
    const isCut = this.isText ? message.finishReason !== "context" : ["length", "stopped"].includes(message.finishReason);
    return (isCut || message.error) && message.content.trim() && this.#isLast(message);
  }

  /** Whether an answer is the last message, and complete. */
  #isLast(message) {
    return message.id === tip(this.current) && !this.running.has(this.current.id);
  }

  resume(message) {
    this.#fill(message, pathTo(this.current, message.parent), { continues: true });
  }

  /** Answers the tools' calls, and has the model go on. */
  sendResults(results) {
    let parent = tip(this.current);
    for (const { id, content } of results) parent = add(this.current, parent, { role: "tool", content, toolCallId: id }).id;
    this.#answer(parent);
  }

  #submit() {
    if (this.running.has(this.current.id)) return this.#stop();
    const { draft } = this.composer;
    if (!draft || !chosen()) return;
    this.composer.clear();
    this.#answer(add(this.current, tip(this.current), draft).id);
  }

  #answer(parent, sentFrom = undefined) {
    const before = pathTo(this.current, parent);
    this.#fill(add(this.current, parent, { role: "assistant", model: chosen()?.name ?? "", ...(sentFrom && { sentFrom }) }), before);
  }

  async #fill(message, before, how = {}) {
    const conversation = this.current;
    const controller = new AbortController();
    this.running.set(conversation.id, { controller, message });
    this.#changed(conversation);
    let timer = null;
    let saved = Date.now();
    let { sentFrom } = message;
    const grow = (isGrowing) => {
      if (message.sentFrom !== sentFrom || (message.mode === "text" && this.views.get(message.id)?.markdown)) this.#show();
      sentFrom = message.sentFrom;
      this.#grown(conversation, message, isGrowing);
    };
    const show = () => {
      timer = null;
      if (Date.now() - saved > SAVE_MS) { saved = Date.now(); this.#changed(conversation); }
      grow(true);
    };
    this.#show();
    this.log.scrollTop = this.log.scrollHeight;
    await fill(conversation, message, before, how, controller.signal, () => { timer ??= setTimeout(show, SHOW_MS); });
    clearTimeout(timer);
    if (this.running.get(conversation.id)?.controller === controller) this.running.delete(conversation.id);
    conversation.updated = Date.now();
    this.#changed(conversation);
    grow(false);
    this.#showList();
    this.#showComposer();
  }

  #grown(conversation, message, isGrowing) {
    if (conversation !== this.current) return;
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
    this.log.setAttribute("aria-busy", String(isGrowing));
    this.views.get(message.id)?.show(isGrowing);
    if (message.stats?.total) this.composer.meter.show(message.stats.total, this.#context());
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  #stop() {
    this.running.get(this.current.id)?.controller.abort();
  }

  #show() {
    this.views = new Map();
    this.wasText = this.isText;
    const growing = this.running.get(this.current.id)?.message;
    const shown = path(this.current);
    const kept = new Set(sent(shown));
    for (const message of shown) {
      const view = new MessageView(this, this.current, message, kept.has(message));
      this.views.set(message.id, view);
      if (message === growing) view.show(true);
    }
    const top = this.log.scrollTop;
    const focus = this.#focus();
    this.log.replaceChildren(...[...this.views.values()].map((view) => view.node));
    focus();
    if (!this.views.size) this.log.append(this.#welcome());
    this.log.scrollTop = top || this.log.scrollHeight;
    this.#showSettings();
    this.#showList();
    this.#showComposer();
  }

  /** What puts the focus, if it is the keyboard's and on a button of a message, on that of the message in its place. */
  #focus() {
    const from = this.log.querySelector("button:focus-visible");
    if (!from) return () => {};
    const name = (button) => button.ariaLabel ?? button.textContent;
    const at = [...this.log.children].indexOf(from.closest(".message"));
    const group = from.closest(".branches") ? ".branches *" : ":not(*)"; // one of the two may be disabled now
    return () => {
      const buttons = [...this.log.children[at]?.querySelectorAll("button:enabled") ?? []];
      (buttons.find((button) => name(button) === name(from)) ?? buttons.find((button) => button.matches(group)) ?? this.area).focus();
    };
  }

  /** Makes the controls for another conversation only: what the user is typing into them is not set yet. */
  #showSettings() {
    const conversation = this.current;
    if (this.settingsOf === conversation) return;
    this.settingsOf = conversation;
    this.fields = new SettingsView(conversation, () => { this.#changed(conversation); this.#modelChanged(); });
    this.settings.replaceChildren(this.#head("Settings"), this.fields.node);
    this.fields.showModel(chosen());
  }

  #showList() {
    this.title.textContent = this.current.title || "New conversation";
    this.conversationList.show();
  }

  #showComposer() {
    this.composer.show(this.running.has(this.current.id), this.isText);
    this.#measure();
  }

  #welcome() {
    return element("div", { class: "welcome" }, element("p", { text: "Everything stays on this machine: the model runs in the server, conversations are kept in this browser." }),
      element("p", { class: "actions" }, ...EXAMPLES[this.isText ? "text" : "chat"].map((example) => button(example, () => {
        this.area.value = example;
        this.#submit();
      }, { class: "quiet" }))));
  }

  /** The longest context of the chosen model, as far as it is known. */
  #context() {
    const model = chosen();
    return model?.context ?? model?.facts?.context ?? 0;
  }

  /** Shows how much of the context is used: as the last answer told, or as the server counts what would be sent. */
  #measure() {
    const [{ draft }, context] = [this.composer, this.#context()];
    const messages = sent(path(this.current));
    const total = messages.at(-1)?.stats?.total;
    const isLoaded = chosen()?.state === "loaded";
    const key = JSON.stringify([this.current.id, chosen()?.name, isLoaded, context, draft, messages.length, total]);
    if (this.running.has(this.current.id) || key === this.measured) return;
    this.measured = key;
    if (!draft && total) return void this.composer.meter.show(total, context);
    if (!isLoaded || !(draft || messages.length)) return void this.composer.meter.unknown(context);
    const { system, settings, tools } = this.current;
    this.composer.meter.ask(() => ({
      model: chosen().name, mode: this.isText ? "text" : "chat", system, settings, tools, continues: false,
      messages: [...messages, ...(draft ? [draft] : [])],
    }), context);
  }

  #modelChanged() {
    this.fields?.showModel(chosen());
    if (this.isText !== this.wasText && !this.log.querySelector(".edit")) this.#show(); else this.#showComposer();
  }

  #added(conversation) {
    this.conversations.unshift(conversation);
    this.#changed(conversation);
    return conversation;
  }

  #changed(conversation) {
    if (Object.keys(conversation.messages).length) storage.save(conversation).then(
      () => { if (this.problem.textContent.startsWith("Not saved")) this.problem.textContent = ""; },
      (error) => { this.problem.textContent = `Not saved in this browser: ${error.message}`; });
  }

  #drawer(label, side) {
    return button(label, () => {
      const wasOpen = side.classList.contains("open");
      this.#close();
      side.classList.toggle("open", !wasOpen);
      this.drawers[side === this.list ? 0 : 1].setAttribute("aria-expanded", String(!wasOpen));
      if (!wasOpen) side.querySelector("button, input, textarea, select")?.focus();
    }, { class: "quiet drawer", "aria-controls": side.id, "aria-expanded": "false" });
  }

  /** The head of a side; its button closes what covers the chat on small screens. */
  #head(text) {
    return element("div", { class: "side-head" }, element("h2", { text }), button(`Close ${text.toLowerCase()}`, () => this.#close(), { text: "×", class: "quiet close" }));
  }

  #close() {
    for (const [at, side] of [this.list, this.settings].entries()) {
      if (!side.classList.contains("open")) continue;
      side.classList.remove("open");
      this.drawers[at].setAttribute("aria-expanded", "false");
      if (side.contains(document.activeElement)) this.drawers[at].focus();
    }
  }

  #escape() {
    if (document.querySelector(".side.open")) this.#close();
    else this.#stop();
  }
}

// The list of conversations, with search, import and export.

import { button, element } from "./element.js";
import { exported, imported } from "./transfer.js";

/** The list on the page. */
export class ConversationList {
  /**
   * @param {{conversations: Object[], current: Object, running: Map, open: function, create: function, remove: function,
   *   rename: function, take: function(Object[])}} chat
   */
  constructor(chat) {
    this.chat = chat;
    this.search = element("input", { type: "search", placeholder: "Search", "aria-label": "Search in conversations", on: { input: () => this.show() } });
    this.items = element("ul", { "aria-label": "Conversations" });
    this.none = element("p", { class: "hint", role: "status" });
    this.node = element("div", { class: "conversations" },
      button("New conversation", () => chat.create(), { class: "wide-button" }), this.search, this.items, this.none, ...transfers(chat));
  }

  /** Shows the conversations as they are now: those that have what is searched for. */
  show() {
    const hadFocus = this.items.contains(document.activeElement);
    const found = this.chat.conversations.filter((conversation) => matches(conversation, this.search.value));
    this.search.hidden = this.chat.conversations.length < 2;
    this.none.textContent = found.length ? "" : "None has these words.";
    this.items.replaceChildren(...found.map((conversation) => item(this.chat, conversation)));
    if (hadFocus) this.items.querySelector("[aria-current]")?.focus();
  }
}

/** Whether a conversation has all words of a text, in its title, its messages or their files, in any case. */
export function matches({ title, messages }, text) {
  const words = text.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const all = [title, ...Object.values(messages).flatMap((message) => [message.content, ...(message.attachments ?? []).flatMap((file) => [file.name, file.text])])];
  const place = all.join("\n").toLocaleLowerCase();
  return words.every((word) => place.includes(word));
}

function transfers(chat) {
  const problem = element("p", { class: "error", role: "alert" });
  const file = element("input", { type: "file", accept: ".json,application/json", class: "hidden", "aria-label": "File to import", tabindex: "-1" });
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    file.value = "";
    try {
      if (chosen) chat.take(imported(await chosen.text()));
      problem.textContent = "";
    } catch (error) {
      problem.textContent = `${chosen.name}: ${error.message}`;
    }
  });
  return [
    element("div", { class: "actions" },
      button("Export this one", () => download(chat.current.title || "conversation", exported([chat.current])), { text: "Export", class: "quiet" }),
      button("Export all", () => download("conversations", exported(chat.conversations)), { class: "quiet" }),
      button("Import", () => file.click(), { class: "quiet" }), file),
    problem,
  ];
}

function item(chat, conversation) {
  const isCurrent = conversation.id === chat.current.id;
  const title = conversation.title || "New conversation";
  const open = button(title, () => chat.open(conversation), { class: "open", "aria-current": isCurrent ? "true" : null });
  if (chat.running.has(conversation.id)) open.append(element("span", { class: "dot", role: "img", "aria-label": "is being answered" }));
  return element("li", {}, open,
    isCurrent && button(`Rename ${title}`, () => {
      const name = prompt("The conversation's name", title);
      if (name) chat.rename(conversation, name.trim());
    }, { text: "✎", class: "quiet" }),
    button(`Delete ${title}`, () => {
      if (confirm(`Delete “${title}” from this browser?`)) chat.remove(conversation);
    }, { text: "×", class: "quiet" }));
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = element("a", { href: address, download: `${name.replace(/[^\p{L}\p{N} _-]+/gu, "").trim() || "conversation"}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// The list of conversations, with import and export.

import { button, element } from "./element.js";
import { exported, imported } from "./transfer.js";

/**
 * The list.
 * @param {{conversations: Object[], current: Object, running: Map, open: function, create: function, remove: function,
 *   rename: function, take: function(Object[])}} chat
 */
export function conversationList(chat) {
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
  return element("div", { class: "conversations" },
    button("New conversation", () => chat.create(), { class: "wide-button" }),
    element("ul", { "aria-label": "Conversations" }, ...chat.conversations.map((conversation) => item(chat, conversation))),
    element("div", { class: "actions" },
      button("Export this one", () => download(chat.current.title || "conversation", exported([chat.current])), { text: "Export", class: "quiet" }),
      button("Export all", () => download("conversations", exported(chat.conversations)), { class: "quiet" }),
      button("Import", () => file.click(), { class: "quiet" }), file),
    problem);
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

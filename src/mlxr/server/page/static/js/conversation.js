// A conversation is a tree of messages: an edit or another answer is a further child of the same parent, and
// `selected` says which child of each message is shown. The root, "", is no message. Nothing here touches the page.

import { withAttachments } from "./attachments.js";

/** A new conversation. */
export function newConversation(defaults = {}) {
  const now = Date.now();
  return {
    id: crypto.randomUUID(), title: "", created: now, updated: now, mode: "auto", system: "", settings: {}, tools: "",
    ...structuredClone(defaults), messages: {}, selected: {},
  };
}

/** The children of a message, oldest first. */
export function children(conversation, id) {
  return Object.values(conversation.messages).filter((message) => message.parent === id);
}

/** The messages that are shown, from the first one. */
export function path(conversation) {
  const shown = [];
  let id = "";
  while (conversation.selected[id] !== undefined) {
    id = conversation.selected[id];
    shown.push(conversation.messages[id]);
  }
  return shown;
}

/** The messages before one, and that one. */
export function pathTo(conversation, id) {
  const before = [];
  for (let at = id; at !== ""; at = conversation.messages[at].parent) before.unshift(conversation.messages[at]);
  return before;
}

/** Adds a message below another one (or "") and shows it; returns it. */
export function add(conversation, parent, fields) {
  const message = { id: crypto.randomUUID(), parent, created: Date.now(), content: "", ...fields };
  conversation.messages[message.id] = message;
  conversation.selected[parent] = message.id;
  conversation.updated = message.created;
  if (!conversation.title && message.role === "user") conversation.title = titleOf(message.content || message.attachments?.[0]?.name || "");
  return message;
}

/** Shows the sibling of a message that is `step` further; returns whether there is one. */
export function turn(conversation, id, step) {
  const { parent } = conversation.messages[id];
  const siblings = children(conversation, parent);
  const next = siblings[siblings.findIndex((message) => message.id === id) + step];
  if (next) conversation.selected[parent] = next.id;
  return Boolean(next);
}

/** The last message that is shown, or "" in an empty conversation. */
export function tip(conversation) {
  return path(conversation).at(-1)?.id ?? "";
}

/** The calls of tools of a message for which no result follows on the shown path. */
export function openCalls(conversation, message) {
  const shown = path(conversation);
  const answered = new Set(shown.map((other) => other.toolCallId));
  return (message.toolCalls ?? []).filter((call) => !answered.has(call.id));
}

/**
 * Those of a path's messages that a model is sent: all, or those from the message that the last `sentFrom` on the path
 * names. Answers have it for which the oldest turns were dropped.
 */
export function sent(messages) {
  const first = messages.findLast((message) => message.sentFrom)?.sentFrom;
  return messages.slice(Math.max(0, messages.findIndex((message) => message.id === first)));
}

/** What is left of some messages when one, two, ... of the oldest turns are dropped; the last turn stays. */
export function withoutOldest(messages) {
  const turns = messages.flatMap((message, at) => (message.role === "user" ? [at] : []));
  return turns.slice(1).map((at) => messages.slice(at));
}

/** Whether a message has nothing that a model wrote. */
export function isEmpty(message) {
  return !message.content && !message.reasoning && !message.toolCalls?.length;
}

/** The messages as /v1/chat/completions takes them. */
export function asRequest(system, messages) {
  const told = messages.filter((message) => !(message.role === "assistant" && isEmpty(message))).map((message) => {
    if (message.role === "tool") return { role: "tool", content: message.content, tool_call_id: message.toolCallId };
    if (message.role === "user") return { role: "user", content: withAttachments(message) };
    return {
      role: "assistant", content: message.content,
      ...(message.reasoning && { reasoning_content: message.reasoning }),
      ...(message.toolCalls?.length && {
        tool_calls: message.toolCalls.map((call) => ({
          id: call.id, type: "function", function: { name: call.name, arguments: call.arguments || "{}" },
        })),
      }),
    };
  });
  return system ? [{ role: "system", content: system }, ...told] : told;
}

/** The messages as one text, for models that only continue texts. */
export function asText(system, messages) {
  return system + messages.map(withAttachments).join("");
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

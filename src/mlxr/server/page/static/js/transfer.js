// Conversations as JSON files: what is written, and what is taken.

import { NUMBERS } from "./generate.js";

const FORMAT = "mlxr-conversations";
const ROLES = new Set(["user", "assistant", "tool"]);
const TEXTS = ["content", "reasoning", "model", "finishReason", "toolCallId", "name", "error", "errorCode", "mode", "sentFrom"];
const NUMERIC = new Set(NUMBERS.map(([name]) => name));
const TEXTUAL = new Set(["stop", "thinking", "reasoning_effort", "tool_choice"]);

/** The text of a file with some conversations. */
export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/**
 * The conversations of a file, each with a new id, and only with fields that are known.
 * @throws {Error} with a message for people.
 */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`this file is not JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT) throw new Error("this file has no conversations of this page: export some to see the form");
  if (file.version !== 1) throw new Error(`this file has version ${file.version} of the form, and this page reads 1`);
  if (!Array.isArray(file.conversations)) throw new Error("conversations is not a list");
  return file.conversations.map(conversation);
}

function conversation(read, at) {
  const where = `conversations[${at}]`;
  if (!isRecord(read)) throw new Error(`${where} is not an object`);
  if (!isRecord(read.messages) || !isRecord(read.selected)) throw new Error(`${where} has no messages or no selected`);
  const now = Date.now();
  const messages = {};
  for (const [id, one] of Object.entries(read.messages)) messages[id] = message(one, id, read.messages, `${where}.messages.${id}`);
  const selected = {};
  for (const [parent, child] of Object.entries(read.selected)) {
    if (messages[child]?.parent !== parent) throw new Error(`${where}.selected.${parent} is no message below that one`);
    selected[parent] = child;
  }
  return {
    id: crypto.randomUUID(), title: text(read.title), created: number(read.created, now), updated: number(read.updated, now),
    mode: ["auto", "chat", "text"].includes(read.mode) ? read.mode : "auto", system: text(read.system), tools: text(read.tools),
    settings: isRecord(read.settings) ? settings(read.settings) : {}, messages, selected,
  };
}

function message(read, id, all, where) {
  if (id === "" || id in {}) throw new Error(`${where}: this cannot be the id of a message`); // "" is the root
  if (!isRecord(read) || !ROLES.has(read.role)) throw new Error(`${where} has no role that is known`);
  const known = { id, parent: read.parent, role: read.role, created: number(read.created, 0), content: "" };
  for (const name of TEXTS) if (typeof read[name] === "string") known[name] = read[name];
  if (isRecord(read.stats)) known.stats = Object.fromEntries(Object.entries(read.stats).filter(([, n]) => Number.isFinite(n)));
  if (Array.isArray(read.attachments)) known.attachments = read.attachments.map((file) => ({ name: text(file?.name), text: text(file?.text) }));
  if (Array.isArray(read.toolCalls)) {
    known.toolCalls = read.toolCalls.map((call) => ({ id: text(call?.id), name: text(call?.name), arguments: text(call?.arguments) }));
  }
  const seen = new Set([id]);
  for (let at = read.parent; at !== ""; at = all[at].parent) {
    if (!isRecord(all[at]) || seen.has(at)) throw new Error(`${where} hangs below no message`);
    seen.add(at);
  }
  return known;
}

function settings(read) {
  return Object.fromEntries(Object.entries(read).filter(([name, value]) =>
    (NUMERIC.has(name) && Number.isFinite(value)) || (TEXTUAL.has(name) && typeof value === "string")));
}

function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value) {
  return typeof value === "string" ? value : "";
}

function number(value, otherwise) {
  return Number.isFinite(value) ? value : otherwise;
}

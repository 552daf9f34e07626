// Fills a message with the model's answer, as it comes.

import { announce } from "./element.js";
import { generate } from "./generate.js";
import { canChat, load, models, onChange, watching } from "./models.js";

/** How a conversation asks a model: `chat`, or `text` for a model without a chat template. */
export function modeOf(conversation, name) {
  if (conversation.mode !== "auto") return conversation.mode;
  return canChat(name) === false ? "text" : "chat";
}

/**
 * Generates an answer into a message; returns when it has ended, whatever the reason, which the message says then.
 * @param {Object} conversation
 * @param {Object} message the answer; `message.content` is its beginning if `continues`.
 * @param {Object[]} before the messages that it answers.
 * @param {boolean} continues
 * @param {AbortSignal} signal
 * @param {function(): void} changed is called when the message has changed.
 */
export async function fill(conversation, message, before, continues, signal, changed) {
  const begun = performance.now();
  let first = null;
  let usage = null;
  delete message.error;
  delete message.finishReason;
  try {
    await watching(async () => {
      if (canChat(message.model) === null) await loaded(message, signal, changed);
      message.mode = modeOf(conversation, message.model);
      await generate({
        model: message.model, mode: message.mode, system: conversation.system, settings: conversation.settings,
        tools: conversation.tools, messages: continues ? [...before, message] : before, continues, signal,
      }, (piece) => {
        if (piece.waiting === undefined) first ??= performance.now();
        if (piece.usage) usage = piece.usage;
        take(message, piece);
        changed();
      });
    });
    const context = models().find((model) => model.name === message.model)?.context;
    if (message.finishReason === "length" && usage && usage.total_tokens >= context) message.finishReason = "context";
    announce("The answer is complete.");
  } catch (error) {
    if (error.name === "AbortError") message.finishReason = "stopped";
    else message.error = error.message;
    announce(error.name === "AbortError" ? "Stopped." : `Failed: ${error.message}`);
  }
  delete message.waiting;
  if (first !== null) message.stats = statsOf(usage, begun, first);
}

/** Loads the model, whose progress the message shows meanwhile. */
async function loaded(message, signal, changed) {
  const stop = onChange(() => {
    message.waiting = models().find((model) => model.name === message.model)?.progress || "loading";
    changed();
  });
  try {
    await load(message.model, signal);
  } finally {
    stop();
    delete message.waiting;
  }
}

function take(message, { content, reasoning, call, waiting, finishReason }) {
  if (content) message.content += content;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (call) {
    message.toolCalls ??= [];
    const known = (message.toolCalls[call.index] ??= { id: call.id, name: call.name, arguments: "" });
    known.arguments += call.arguments ?? "";
  }
  if (waiting) message.waiting = waiting; else delete message.waiting;
  if (finishReason) message.finishReason = finishReason;
}

function statsOf(usage, begun, first) {
  const stats = { firstMs: first - begun };
  if (!usage) return stats;
  const seconds = (performance.now() - first) / 1000;
  Object.assign(stats, {
    tokens: usage.completion_tokens, prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  });
  if (usage.completion_tokens > 1 && seconds > 0) stats.perSecond = (usage.completion_tokens - 1) / seconds;
  return stats;
}

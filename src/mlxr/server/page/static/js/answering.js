// Fills a message with the model's answer, as it comes.

import { sent } from "./conversation.js";
import { dropped } from "./dropping.js";
import { announce } from "./element.js";
import { generate } from "./generate.js";
import { LoadingStages } from "./loading_stages.js";
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
 * @param {{continues?: boolean, drops?: boolean}} how `drops`: as many of the oldest turns are not sent as must go for
 *   the rest and its answer to fit into the context; `message.sentFrom` names the first message that is sent.
 * @param {AbortSignal} signal
 * @param {function(): void} changed is called when the message has changed.
 */
export async function fill(conversation, message, before, { continues = false, drops = false }, signal, changed) {
  let begun = performance.now();
  let first = null;
  let usage = null;
  const begin = continues ? message.stats : undefined;
  for (const name of ["error", "errorCode", "stats"]) delete message[name];
  message.finishReason = "stopped"; // what it is if the page ends before the answer does
  try {
    await watching(async () => {
      if (models().find((model) => model.name === message.model)?.state !== "loaded") {
        await loaded(message, signal, changed);
        begun = performance.now(); // what comes later is the model's own speed
      }
      message.mode = modeOf(conversation, message.model);
      const request = {
        model: message.model, mode: message.mode, system: conversation.system, settings: conversation.settings,
        tools: conversation.tools, continues, signal, context: contextOf(message.model),
      };
      const messages = () => sent([...before, message]).slice(0, continues ? undefined : -1);
      if (drops) message.sentFrom = await dropped(request, messages());
      changed();
      await generate({ ...request, messages: messages() }, (piece) => {
        if (piece.waiting === undefined) first ??= performance.now();
        if (piece.usage) usage = piece.usage;
        take(message, piece);
        if (first !== null) message.stats = statsOf(usage, begun, first, begin);
        changed();
      });
    });
    const context = contextOf(message.model);
    if (message.finishReason === "length" && usage && usage.total_tokens >= context) message.finishReason = "context";
    announce("The answer is complete.");
  } catch (error) {
    if (error.name !== "AbortError") {
      delete message.finishReason;
      Object.assign(message, { error: error.message, ...(error.code && { errorCode: error.code }) });
    }
    announce(error.name === "AbortError" ? "Stopped." : `Failed: ${error.message}`);
  }
  delete message.waiting;
  delete message.loading;
  if (begin) message.stats ??= begin;
}

function contextOf(name) {
  return models().find((model) => model.name === name)?.context;
}

/** Loads the model, whose progress the message shows meanwhile. */
async function loaded(message, signal, changed) {
  const stages = new LoadingStages();
  message.loading = stages;
  const stop = onChange(() => {
    stages.tell(models().find((model) => model.name === message.model)?.progress || (stages.stages.length ? "" : "loading"));
    changed();
  });
  try {
    await load(message.model, signal);
  } finally {
    stop();
    delete message.loading;
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

/** What the page saw of an answer, whoever ended it; `begin`: the same of its beginning, which this part continues. */
function statsOf(usage, begun, first, begin = { firstMs: first - begun }) {
  if (!usage?.completion_tokens) return begin;
  const stats = {
    ...begin, tokens: (begin.tokens ?? 0) + usage.completion_tokens,
    later: (begin.later ?? 0) + usage.completion_tokens - 1, // the tokens after the first, which took so many seconds:
    seconds: (begin.seconds ?? 0) + (performance.now() - first) / 1000, total: usage.total_tokens,
  };
  if (stats.later && stats.seconds > 0) stats.perSecond = stats.later / stats.seconds;
  if (begin.tokens === undefined && usage.prompt_tokens_details) {
    Object.assign(stats, { prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details.cached_tokens });
  }
  return stats;
}

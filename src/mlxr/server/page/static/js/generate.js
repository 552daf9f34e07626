// Asks the server for an answer and reads it as it comes.

import { ApiError, send } from "./api.js";
import { asRequest, asText } from "./conversation.js";
import { events } from "./event_stream.js";

/** Longest answer in text mode where none is set: the API's own default is 16. */
const TEXT_TOKENS = 256;
const SMALL_CONTEXT = 4096;

/** Settings that are sent as they are, if they are given: name, kind, least, most, step, what it does. */
export const NUMBERS = [
  ["temperature", 0, 2, 0.05, "0 takes the likeliest token; 1 is the model's own spread"],
  ["top_p", 0, 1, 0.01, "only the likeliest tokens that together have this probability"],
  ["top_k", 0, null, 1, "only so many of the likeliest tokens; 0: all"],
  ["min_p", 0, 1, 0.01, "only tokens this likely, relative to the likeliest"],
  ["repetition_penalty", 0.01, 2, 0.01, "above 1: tokens that came before get less likely"],
  ["frequency_penalty", -2, 2, 0.1, "by how often a token came in the answer"],
  ["presence_penalty", -2, 2, 0.1, "for a token that came in the answer at all"],
  ["max_tokens", 1, null, 1, `the longest answer; if empty, of a text ${TEXT_TOKENS}, and of a context below ${SMALL_CONTEXT} a quarter`],
  ["seed", null, null, 1, "the same seed gives the same answer again"],
];

/**
 * One answer.
 * @param {{model: string, mode: "chat"|"text", system: string, messages: Object[], settings: Object, tools: string,
 *   continues: boolean, context?: number, signal: AbortSignal}} request `continues`: the last message is the beginning
 *   of the answer; `context`: tokens that the model has room for.
 * @param {function(Object): void} tell gets pieces: `{content}`, `{reasoning}`, `{call: {index, id?, name?, arguments?}}`,
 *   `{waiting}` (what the server waits for), `{finishReason}` and `{usage}`.
 * @throws {ApiError|Error} what went wrong; an AbortError if the signal said so.
 */
export async function generate(request, tell) {
  const response = await send(request.mode === "chat" ? "/v1/chat/completions" : "/v1/completions", {
    body: bodyOf(request), signal: request.signal,
  });
  let finished = false;
  for await (const { data, comment } of events(response)) {
    if (comment !== undefined) {
      tell({ waiting: comment === "alive" ? "" : comment });
    } else if (data === "[DONE]") {
      finished = true;
    } else {
      for (const piece of piecesOf(JSON.parse(data))) tell(piece);
    }
  }
  if (!finished) throw new ApiError(0, "the answer broke off: the server has gone");
}

/** The longest answer where none is set: of a short context a quarter, so that the conversation can go on. */
function usualTokens(mode, context) {
  if (mode === "text") return TEXT_TOKENS;
  return context && context < SMALL_CONTEXT ? Math.floor(context / 4) : undefined;
}

/** The body of a request. */
export function bodyOf({ model, mode, system, messages, settings, tools, continues, context }) {
  const body = { model, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const [name] of NUMBERS) if (typeof settings[name] === "number") body[name] = settings[name];
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  body.max_tokens ??= continues ? undefined : usualTokens(mode, context); // undefined: all that there is room for
  if (mode === "text") return { ...body, max_tokens: body.max_tokens ?? TEXT_TOKENS, prompt: asText(system, messages) };
  body.messages = asRequest(system, messages);
  if (tools.trim()) Object.assign(body, { tools: parsedTools(tools), ...(settings.tool_choice && { tool_choice: settings.tool_choice }) });
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  if (continues) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}

/**
 * Tools as the user wrote them: a list, each in OpenAI's form or only its function.
 * @throws {Error} with a message for people.
 */
export function parsedTools(text) {
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`the tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("the tools are not a list: write [ ... ] around them");
  return tools.map((tool) => (tool?.function ? tool : { type: "function", function: tool }));
}

function* piecesOf(chunk) {
  if (chunk.error) throw new ApiError(0, chunk.error.message ?? String(chunk.error), chunk.error.code);
  const choice = chunk.choices?.[0];
  if (choice) {
    const delta = choice.delta ?? { content: choice.text };
    if (delta.reasoning_content) yield { reasoning: delta.reasoning_content };
    if (delta.content) yield { content: delta.content };
    for (const call of delta.tool_calls ?? []) {
      yield { call: { index: call.index, id: call.id, name: call.function?.name, arguments: call.function?.arguments } };
    }
    if (choice.finish_reason) yield { finishReason: choice.finish_reason };
  }
  if (chunk.usage) yield { usage: chunk.usage };
}

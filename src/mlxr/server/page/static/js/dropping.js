// Which of the oldest turns a conversation goes on without, when it has become too long for the context.

import { send } from "./api.js";
import { withoutOldest } from "./conversation.js";
import { bodyOf } from "./generate.js";

/**
 * Drops as few turns as must go so that the rest fits, with room for the answer. If not even the last turn fits, it
 * stays alone, and the server says how long it is.
 * @param {Object} request as for `generate`, without `messages`.
 * @param {Object[]} messages of two turns at least.
 * @returns {Promise<string>} the id of the first message that stays.
 */
export async function dropped(request, messages) {
  const rests = withoutOldest(messages);
  let [fewest, most] = [0, rests.length - 1];
  while (fewest < most) {
    const middle = Math.floor((fewest + most) / 2);
    if (await fits({ ...request, messages: rests[middle] })) most = middle; else fewest = middle + 1;
  }
  return rests[fewest][0].id;
}

/** Whether there is room for max_tokens, or a quarter of the context if that is less: as `mlxr chat` has it. */
async function fits(request) {
  const { model, prompt, messages, tools, chat_template_kwargs } = bodyOf(request);
  try {
    const response = await send("/tokenize", { body: { model, prompt, messages, tools, chat_template_kwargs }, signal: request.signal });
    const { count, max_model_len: context } = await response.json();
    return count + Math.min(request.settings.max_tokens ?? context, Math.max(1, Math.floor(context / 4))) <= context;
  } catch (error) {
    if (error.code === "context_length_exceeded") return false;
    throw error;
  }
}

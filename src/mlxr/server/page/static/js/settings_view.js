// The settings of a conversation: how the model is asked, and how tokens are chosen.

import { button, element, labelled } from "./element.js";
import { NUMBERS, TEXT_TOKENS, parsedTools } from "./generate.js";

const MODES = [["auto", "Automatic"], ["chat", "Chat"], ["text", "Text"]];
const EXAMPLE = '[{"name": "get_weather", "description": "Today\'s weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]';

/** What a model says of sampling; what it does not name of these is off. */
const OWN = { temperature: "", top_p: "off", top_k: "off", min_p: "off", repetition_penalty: "off" };

/**
 * Shows in the empty fields of sampling what the model's own values are.
 * @param {HTMLElement} node has the controls.
 * @param {Object|undefined} model as /inspector/models tells of it; its values are known once it was loaded.
 */
export function showDefaults(node, model) {
  const own = model?.sampling;
  for (const name of Object.keys(OWN)) {
    const input = node.querySelector(`[data-option="${name}"]`);
    if (input) input.placeholder = own ? String(own[name] ?? OWN[name]) : "the model's own";
  }
  const note = node.querySelector(".model-sampling");
  if (note) note.textContent = own ? `Empty fields: ${model.sampling_source}.` : "Empty fields: as the model's files say.";
}

/**
 * The controls of a conversation's settings.
 * @param {Object} conversation is changed as the user changes them.
 * @param {function(): void} changed is called then.
 */
export function settingsView(conversation, changed) {
  const { settings } = conversation;
  const set = (name, value) => {
    if (value === "" || value === undefined) delete settings[name]; else settings[name] = value;
    changed();
  };
  const field = (name) => ({ change: (event) => { conversation[name] = event.target.value; changed(); } });
  const tools = element("textarea", { rows: 4, spellcheck: "false", value: conversation.tools, placeholder: EXAMPLE });
  const problem = element("p", { class: "error", role: "alert" });
  tools.addEventListener("change", () => {
    conversation.tools = tools.value;
    problem.textContent = toolsProblem(tools.value);
    changed();
  });
  return element("form", { class: "settings", on: { submit: (event) => event.preventDefault() } },
    labelled("Mode", choice(MODES, conversation.mode, (mode) => { conversation.mode = mode; changed(); }),
      "automatic: chat where the model has a chat template, else it continues a text"),
    labelled("System prompt", element("textarea", { rows: 3, value: conversation.system, on: field("system") }), "in text mode: what stands before the text"),
    element("fieldset", {}, element("legend", { text: "Sampling" }), element("small", { class: "model-sampling" }),
      ...NUMBERS.map(([name, least, most, step, note]) => number(name, settings[name], { min: least, max: most, step }, note, set)),
      labelled("Stop", element("textarea", { rows: 2, value: settings.stop ?? "", on: { change: (event) => set("stop", event.target.value) } }), "one text a line; the answer ends before it"),
      button("Use the model's own sampling", (event) => {
        for (const name of Object.keys(OWN)) {
          event.target.closest("form").querySelector(`[data-option="${name}"]`).value = "";
          delete settings[name];
        }
        changed();
      }, { class: "quiet" })),
    element("fieldset", {}, element("legend", { text: "Reasoning" }),
      labelled("Thinking", choice([["", "The model's default"], ["on", "On"], ["off", "Off"]], settings.thinking ?? "", (value) => set("thinking", value))),
      labelled("Effort", choice([["", "The model's default"], ...["minimal", "low", "medium", "high"].map((e) => [e, e])], settings.reasoning_effort ?? "", (value) => set("reasoning_effort", value)))),
    element("fieldset", {}, element("legend", { text: "Tools" }),
      labelled("Functions (JSON)", tools, "the model's calls are shown; you answer them"), problem,
      labelled("Choice", choice([["", "auto"], ["none", "none"], ["required", "required"]], settings.tool_choice ?? "", (value) => set("tool_choice", value)))));
}

function number(name, value, limits, note, set) {
  const input = element("input", { type: "number", inputmode: "decimal", "data-option": name, ...limits, value: value ?? "", placeholder: name === "max_tokens" ? `all; ${TEXT_TOKENS} of a text` : "default" });
  input.addEventListener("change", () => {
    if (!input.checkValidity()) return void input.reportValidity();
    set(name, input.value === "" ? undefined : Number(input.value));
  });
  return labelled(name.replaceAll("_", " "), input, note);
}

function choice(options, value, set) {
  return element("select", { on: { change: (event) => set(event.target.value) } },
    ...options.map(([key, text]) => element("option", { value: key, text, selected: key === value })));
}

function toolsProblem(text) {
  if (!text.trim()) return "";
  try {
    parsedTools(text);
    return "";
  } catch (error) {
    return error.message;
  }
}

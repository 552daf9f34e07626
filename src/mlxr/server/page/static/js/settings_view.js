// The settings of a conversation: how the model is asked, and how tokens are chosen.

import { button, element, labelled } from "./element.js";
import { NUMBERS, parsedTools } from "./generate.js";
import { applyPreset, dropPreset, keepPreset, presetOf, presets } from "./presets.js";

const MODES = [["auto", "Automatic"], ["chat", "Chat"], ["text", "Text"]];
const EXAMPLE = '[{"name": "get_weather", "description": "Today\'s weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]';
const OWN = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"]; // what a model may say of itself
const FIRST = ["temperature", "max_tokens"]; // the others are folded

/** The settings on the page. */
export class SettingsView {
  /**
   * @param {Object} conversation is changed as the user changes them.
   * @param {function(): void} changed is called then.
   */
  constructor(conversation, changed) {
    Object.assign(this, { conversation, changed, model: undefined });
    this.node = element("form", { class: "settings", on: { submit: (event) => event.preventDefault() } });
    this.#make();
  }

  /**
   * Shows the model's own values in the fields that the user has not set.
   * @param {Object|undefined} model as /inspector/models tells of it; its values are known once its files were read.
   */
  showModel(model) {
    this.model = model;
    const own = model?.sampling;
    for (const [name, input] of this.numbers) {
      if (name in this.conversation.settings || input === document.activeElement) continue;
      const value = OWN.includes(name) ? own?.[name] : undefined;
      input.value = value ?? "";
      input.classList.toggle("own", value !== undefined);
      if (OWN.includes(name)) input.placeholder = own ? "off" : "its own";
    }
    const source = model?.sampling_source ?? "";
    this.source.textContent = own ? `Grey: ${source.startsWith("MLXR") ? source : `the model's own, from ${source}`}.` : "Empty: as the model's files say.";
  }

  #make() {
    const { conversation } = this;
    const { settings } = conversation;
    const field = (name) => ({ change: (event) => { conversation[name] = event.target.value; this.#changed(); } });
    const problem = element("p", { class: "error", role: "alert" });
    const tools = element("textarea", { rows: 4, spellcheck: "false", value: conversation.tools, placeholder: EXAMPLE });
    tools.addEventListener("change", () => {
      conversation.tools = tools.value;
      problem.textContent = toolsProblem(tools.value);
      this.#changed();
    });
    this.source = element("small", { class: "model-sampling" });
    this.numbers = new Map();
    const fields = new Map(NUMBERS.map((number) => [number[0], this.#number(...number)]));
    const rest = [...fields].filter(([name]) => !FIRST.includes(name));
    const isSet = rest.some(([name]) => name in settings) || settings.stop;
    this.preset = element("div", { class: "presets" });
    this.#showPresets();
    const set = (name) => (value) => this.#set(name, value);
    this.node.replaceChildren(this.preset,
      labelled("System prompt", element("textarea", { rows: 3, value: conversation.system, on: field("system") }), "in text mode: what stands before the text"),
      element("fieldset", {}, element("legend", { text: "Sampling" }), this.source, ...FIRST.map((name) => fields.get(name)),
        fold("More sampling", isSet, ...rest.map(([, node]) => node),
          labelled("Stop", element("textarea", { rows: 2, value: settings.stop ?? "", on: { change: (event) => this.#set("stop", event.target.value) } }), "one text a line; the answer ends before it"))),
      fold("Mode and reasoning", conversation.mode !== "auto" || settings.thinking || settings.reasoning_effort,
        labelled("Mode", choice(MODES, conversation.mode, (mode) => { conversation.mode = mode; this.#changed(); }),
          "automatic: chat where the model has a chat template, else it continues a text"),
        labelled("Thinking", choice([["", "The model's default"], ["on", "On"], ["off", "Off"]], settings.thinking ?? "", set("thinking"))),
        labelled("Effort", choice([["", "The model's default"], ...["minimal", "low", "medium", "high"].map((e) => [e, e])], settings.reasoning_effort ?? "", set("reasoning_effort")))),
      fold("Tools", conversation.tools, labelled("Functions (JSON)", tools, "the model's calls are shown; you answer them"), problem,
        labelled("Choice", choice([["", "auto"], ["none", "none"], ["required", "required"]], settings.tool_choice ?? "", set("tool_choice")))));
    this.showModel(this.model);
  }

  #showPresets() {
    const current = presetOf(this.conversation);
    const options = presets().map(({ name }) => [name, name]);
    this.preset.replaceChildren(
      labelled("Preset", choice([...(current ? [] : [["", "settings of this conversation"]]), ...options], current?.name ?? "", (name) => {
        applyPreset(this.conversation, presets().findLast((preset) => preset.name === name));
        this.#make();
        this.changed();
      })),
      element("p", { class: "actions" },
        button("Save as a preset", () => {
          const name = prompt("Name of these settings, with the system prompt", current?.isOwn ? current.name : "")?.trim();
          if (!name) return;
          keepPreset(name, this.conversation);
          this.#showPresets();
        }, { class: "quiet" }),
        current?.isOwn && button("Delete this preset", () => { dropPreset(current.name); this.#showPresets(); }, { class: "quiet" })));
  }

  #set(name, value) {
    if (value === "" || value === undefined) delete this.conversation.settings[name]; else this.conversation.settings[name] = value;
    this.#changed();
  }

  #changed() {
    this.#showPresets();
    this.changed();
  }

  #number(name, min, max, step, note) {
    const value = this.conversation.settings[name];
    const input = element("input", { type: "number", inputmode: "decimal", "data-option": name, min, max, step, value: value ?? "",
      placeholder: name === "max_tokens" ? "all" : "default" });
    input.addEventListener("change", () => {
      if (!input.checkValidity()) return void input.reportValidity();
      const given = input.value === "" ? undefined : Number(input.value);
      this.#set(name, OWN.includes(name) && given === this.model?.sampling?.[name] ? undefined : given);
      input.classList.toggle("own", false);
    });
    input.addEventListener("blur", () => this.showModel(this.model));
    this.numbers.set(name, input);
    return labelled(name.replaceAll("_", " "), input, note);
  }
}

function fold(title, isOpen, ...children) {
  return element("details", { class: "fold", open: Boolean(isOpen) }, element("summary", { text: title }), ...children);
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

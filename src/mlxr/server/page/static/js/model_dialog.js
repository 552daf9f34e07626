// What the chosen model is, whether it is loaded, and how other programs ask for it.

import { hasKey } from "./api.js";
import { button, element, labelled } from "./element.js";
import { bytes, count } from "./inspector/numbers.js";
import { copyButton } from "./markdown.js";
import { chosen, load, onChange, unload } from "./models.js";
import { snippets } from "./snippets.js";

/** Makes a button open the dialog, and the dialog follow what the server says of the model. */
export function startModelDialog(opener) {
  const dialog = document.getElementById("model-dialog");
  const body = document.getElementById("model-body");
  const problem = document.getElementById("model-error");
  let client = 0;
  let shown = "";
  const act = async (action, pressed) => {
    problem.textContent = "";
    pressed.disabled = true;
    try {
      await action();
    } catch (error) {
      problem.textContent = error.message;
    }
    pressed.disabled = false;
  };
  const show = () => {
    const model = chosen();
    opener.hidden = !model;
    const key = JSON.stringify([model, client, dialog.open]);
    if (!dialog.open || !model || key === shown) return;
    shown = key;
    document.getElementById("model-title").textContent = model.name;
    const all = snippets({
      url: location.origin, model: model.name, context: model.context ?? model.facts?.context ?? null, needsKey: hasKey(),
    });
    const snippet = all[Math.min(client, all.length - 1)];
    const place = body.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const change = model.state === "loaded"
      ? button("Unload", (event) => act(() => unload(model.name), event.target), { "data-name": "change", disabled: model.pinned, title: model.pinned ? "It was started as one that stays" : null })
      : button("Load", (event) => act(() => load(model.name), event.target), { "data-name": "change", disabled: model.state !== "cold" });
    const choice = element("select", { "data-name": "client", on: { change: () => { client = Number(choice.value); show(); } } },
      ...all.map(({ name }, at) => element("option", { value: at, text: name, selected: at === client })));
    body.replaceChildren(
      element("dl", {}, ...facts(model).flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })])),
      element("p", { class: "actions" }, change),
      element("h3", { text: "Connect a client" }), labelled("Client", choice),
      element("figure", { class: "code" }, element("figcaption", {}, element("span", { text: snippet.language }), copyButton(() => snippet.text, "Copy")),
        element("pre", { tabindex: "0" }, element("code", { text: snippet.text }))),
      element("small", { text: snippet.note }));
    if (place) body.querySelector(`[data-name="${place}"]`)?.focus();
  };
  opener.addEventListener("click", () => { problem.textContent = ""; dialog.showModal(); show(); });
  document.getElementById("model-close").addEventListener("click", () => dialog.close());
  onChange(show);
}

function facts({ state, progress, facts: known, context, planned_bytes: memory, can_chat: canChat, pinned }) {
  return [
    ["State", progress || (state === "cold" ? "not loaded" : pinned ? `${state}, and stays so` : state)],
    known && ["Parameters", `${count(known.num_parameters)} in ${known.num_layers} layers (${known.family})`],
    known && ["Format", `${known.quantization}, ${known.format}`],
    known && ["Size of its files", bytes(known.size_bytes)],
    ["Context", context ? `${context.toLocaleString("en")} tokens` : known ? `up to ${known.context.toLocaleString("en")} tokens, as memory allows` : "known when it is loaded"],
    ["Memory", memory && state !== "cold" ? bytes(memory) : "known when it is loaded"],
    canChat !== null && ["Made for", canChat ? "chat: it has a chat template" : "continuing texts: it has no chat template"],
  ].filter(Boolean);
}

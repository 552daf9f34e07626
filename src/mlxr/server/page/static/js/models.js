// The server's models: which there are, which is chosen, how far loading is.

import { getJson, send } from "./api.js";
import { announce, element } from "./element.js";

const STORE = "mlxr-model";
const SLOW = 3000;
const FAST = 400;
const listeners = new Set();
const chatting = new Map(); // by names; models that were unloaded are not forgotten
let known = [];
let timer = null;
let watchers = 0;
let showsForms = false; // those that give embeddings: they cannot chat

/** All models, as /inspector/models tells of them. */
export function models() {
  return known;
}

/** The chosen model, or undefined where there is none. */
export function chosen() {
  const name = document.getElementById("model").value;
  return known.find((model) => model.name === name);
}

/** Whether the forms of models that give embeddings can be chosen, too. */
export function offerForms(offered) {
  showsForms = offered;
  if (known.length) show();
}

/** Unloads a model, in both forms. */
export async function unload(name) {
  known = await (await send(`/inspector/unload?${new URLSearchParams({ model: name })}`, { method: "POST" })).json();
  show();
}

/** Calls a function whenever models or the choice have changed; returns what ends that. */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Whether a model has a chat template: null as long as its files were not read. */
export function canChat(name) {
  return chatting.get(name) ?? null;
}

/** Chooses a model, if there is one of this name. */
export function choose(name) {
  const select = document.getElementById("model");
  if (name === select.value || !known.some((model) => model.name === name)) return;
  select.value = name;
  chosenAnew();
}

/** Shows and chooses a model that the server has just got. */
export async function arrived(name) {
  await refresh();
  choose(name);
}

/** Loads a model, and returns when it is loaded. */
export async function load(name, signal = undefined) {
  return watching(async () => {
    await send(`/inspector/load?${new URLSearchParams({ model: name })}`, { method: "POST", signal });
    await refresh();
  });
}

/** Looks often while an action is under way that may load a model. */
export async function watching(action) {
  watchers += 1;
  schedule(FAST);
  try {
    return await action();
  } finally {
    watchers -= 1;
    refresh().catch(() => {});
  }
}

/** Starts to show the models; returns after the first answer. A single model is loaded: nothing has to go for it. */
export async function start() {
  document.getElementById("model").addEventListener("change", chosenAnew);
  document.addEventListener("visibilitychange", () => document.hidden || schedule(0));
  await refresh();
  if (known.length === 1 && known[0].state === "cold") load(known[0].name).catch((error) => state(error.message, true));
}

async function refresh() {
  try {
    const before = new Map(known.map((model) => [model.name, model.state]));
    known = await getJson("/inspector/models");
    for (const model of known) if (before.get(model.name) === "loading" && model.state === "loaded") announce(`${model.name} is loaded.`);
    for (const model of known) if (model.can_chat !== null) chatting.set(model.name, model.can_chat);
    show();
  } catch (error) {
    state(error.message, true);
  }
  schedule(watchers || known.some((model) => model.state === "loading") ? FAST : SLOW);
}

function schedule(delay) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, delay);
}

function chosenAnew() {
  localStorage.setItem(STORE, document.getElementById("model").value);
  show();
}

function show() {
  const select = document.getElementById("model");
  const names = known.filter((model) => showsForms || !model.base).map((model) => model.name);
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    const before = select.value || localStorage.getItem(STORE);
    select.replaceChildren(...names.map((name) => element("option", { value: name, text: name })));
    const base = known.find((model) => model.name === before)?.base;
    select.value = names.includes(before) ? before : base ?? names[0] ?? "";
  }
  const model = chosen();
  state(model ? model.progress || (model.state === "cold" ? "not loaded" : model.state) : "no models");
  for (const listener of listeners) listener();
}

function state(text, isError = false) {
  const node = document.getElementById("model-state");
  if (node.textContent !== text) node.textContent = text;
  node.classList.toggle("error", isError);
}

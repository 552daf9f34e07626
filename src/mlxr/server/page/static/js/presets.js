// Settings under a name: some that come with the page, and the user's own, which are kept in the browser.

const STORE = "mlxr-presets";
const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"];

/** Those of the page: they change how tokens are chosen, and nothing else. */
const BUILT_IN = [
  { name: "The model's own", settings: {} },
  { name: "Precise", settings: { temperature: 0 } },
  { name: "Balanced", settings: { temperature: 0.7, top_p: 0.95, top_k: 40 } },
  { name: "Creative", settings: { temperature: 1.1, top_p: 1, top_k: 0, min_p: 0.05 } },
];

/** All presets; the user's own have `isOwn`. */
export function presets() {
  return [...BUILT_IN, ...own().map((preset) => ({ ...preset, isOwn: true }))];
}

/** Keeps a conversation's settings and system prompt under a name; one of that name is replaced. */
export function keepPreset(name, { settings, system, tools }) {
  write([...own().filter((preset) => preset.name !== name), { name, settings: { ...settings }, system, tools }]);
}

/** Forgets one of the user's own. */
export function dropPreset(name) {
  write(own().filter((preset) => preset.name !== name));
}

/** Gives a conversation a preset's settings. */
export function applyPreset(conversation, preset) {
  if (preset.isOwn) {
    Object.assign(conversation, { settings: { ...preset.settings }, system: preset.system, tools: preset.tools });
  } else {
    for (const name of SAMPLING) delete conversation.settings[name];
    Object.assign(conversation.settings, preset.settings);
  }
}

/** The preset that a conversation has; undefined: settings of its own. */
export function presetOf({ settings, system, tools }) {
  const same = (a, b) => JSON.stringify(Object.entries(a).sort()) === JSON.stringify(Object.entries(b).sort());
  const sampling = Object.fromEntries(Object.entries(settings).filter(([name]) => SAMPLING.includes(name)));
  return presets().findLast((preset) => (preset.isOwn
    ? same(settings, preset.settings) && system === preset.system && tools === preset.tools : same(sampling, preset.settings)));
}

function own() {
  try {
    const read = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    return Array.isArray(read) ? read.filter((preset) => typeof preset?.name === "string" && preset.settings) : [];
  } catch {
    return [];
  }
}

function write(all) {
  localStorage.setItem(STORE, JSON.stringify(all));
}

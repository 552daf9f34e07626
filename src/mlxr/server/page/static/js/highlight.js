// Code in colour, by highlight.js. A language is loaded when it is first needed.

import core from "../vendored/highlight/core.min.js";
import DOMPurify from "../vendored/purify.es.mjs";

const NAMES = {
  bash: "sh zsh", c: "h", cmake: "", cpp: "cc c++ h++ hpp hh hxx cxx cuda metal", csharp: "cs c#", css: "", diff: "patch",
  dockerfile: "docker", go: "golang", haskell: "hs", ini: "toml", java: "", javascript: "js jsx mjs cjs", json: "jsonc json5",
  julia: "jl", kotlin: "kt", latex: "tex", lua: "", makefile: "mk make", markdown: "md", php: "", python: "py", r: "",
  ruby: "rb", rust: "rs", scala: "", shell: "console shellsession", sql: "", swift: "", typescript: "ts tsx",
  xml: "html xhtml svg", yaml: "yml",
};
const BY_NAME = new Map(Object.entries(NAMES).flatMap(([language, others]) =>
  [language, ...others.split(" ").filter(Boolean)].map((name) => [name, language])));
const MOST = 50_000; // characters; longer code stays plain
const loading = new Map();

/** Code as coloured nodes; null if it stays plain. */
export async function codeNodes(text, name) {
  const language = BY_NAME.get(name.toLowerCase());
  if (!language || text.length > MOST) return null;
  if (!loading.has(language)) loading.set(language, load(language));
  if (!(await loading.get(language))) return null;
  const { value } = core.highlight(text, { language, ignoreIllegals: true });
  return DOMPurify.sanitize(value, {
    ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true,
  });
}

async function load(language) {
  try {
    core.registerLanguage(language, (await import(`../vendored/highlight/languages/${language}.min.js`)).default);
    return true;
  } catch {
    return false;
  }
}

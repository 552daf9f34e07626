// Formulas, by KaTeX, which is loaded when the first one comes. It makes elements, and no string becomes HTML.

import { element } from "./element.js";

const MOST = 4000; // characters; a longer formula stays as it was written
const OPTIONS = { output: "htmlAndMathml", throwOnError: true, strict: "ignore", trust: false, maxSize: 30, maxExpand: 500 };
const INLINE = [/^\\\(([\s\S]+?)\\\)/, /^\$(?![\s$])((?:\\.|[^$\\\n`])+?)(?<!\s)\$(?![\w$])/];
const DISPLAY = [/^\\\[([\s\S]+?)\\\]/, /^\$\$((?:\\.|[^$\\])+?)\$\$/];
let katex = null;
let loading = null;

/** What marked needs to find formulas; `html` makes the HTML of one that `formula` shows later. */
export function mathExtensions(html) {
  const token = (name, patterns, src) => {
    for (const [at, pattern] of patterns.entries()) {
      const found = pattern.exec(src);
      if (found?.[1].trim()) return { type: name, raw: found[0], text: found[1].trim(), isDisplay: name === "mathBlock" || at < DISPLAY.length };
    }
    return undefined;
  };
  const first = (pattern) => (src) => { const at = src.search(pattern); return at < 0 ? undefined : at; };
  const renderer = ({ text, isDisplay, type }) => (type === "mathBlock" ? `<p>${html(text, true)}</p>` : html(text, isDisplay));
  const whole = DISPLAY.map((pattern) => new RegExp(`^ {0,3}${pattern.source.slice(1)}[ \\t]*(?:\\n|$)`));
  return [
    { name: "mathBlock", level: "block", start: first(/(?<=^|\n) {0,3}(?:\\\[|\$\$)/), tokenizer: (src) => token("mathBlock", whole, src), renderer },
    { name: "math", level: "inline", start: first(/\\[([]|\$/), tokenizer: (src) => token("math", [...DISPLAY, ...INLINE], src), renderer },
  ];
}

/** A formula: its source, until KaTeX is there; where it cannot be shown, its source, with the reason. */
export function formula(text, isDisplay) {
  const node = element("span", { class: isDisplay ? "math display" : "math", text });
  if (text.length > MOST) return node;
  if (katex) show(node, text, isDisplay); else load().then(() => katex && show(node, text, isDisplay));
  return node;
}

function show(node, text, isDisplay) {
  try {
    katex.render(text, node, { ...OPTIONS, displayMode: isDisplay });
  } catch (error) {
    node.replaceChildren(element("code", { text, title: error.message }));
  }
}

function load() {
  loading ??= (async () => {
    try {
      const style = new URL("../vendored/katex/katex.min.css", import.meta.url).href;
      document.head.append(element("link", { rel: "stylesheet", href: style }));
      await import("../vendored/katex/katex.min.js"); // no module: it sets a global
      katex = globalThis.katex;
    } catch {
      loading = null; // the server is gone: the next formula tries again
    }
  })();
  return loading;
}

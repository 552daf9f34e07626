// Text of models as DOM. marked makes HTML of Markdown, DOMPurify keeps the tags and attributes below and nothing else,
// and HTML in an answer is shown as text. With the page's policy, strings become HTML nowhere but in DOMPurify.

import DOMPurify from "../vendored/purify.es.mjs";
import { Marked } from "../vendored/marked.esm.js";
import { button, element } from "./element.js";
import { codeNodes } from "./highlight.js";
import { formula, mathExtensions } from "./mathematics.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong del a table thead tbody tr th td".split(" "),
  ],
  ALLOWED_ATTR: ["href", "title", "start", "align", "data-language", "data-math"],
  ALLOW_DATA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i, // for all attributes but:
  ADD_URI_SAFE_ATTR: ["start", "align", "data-language", "data-math"],
  RETURN_DOM_FRAGMENT: true,
};

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html: ({ text }) => escaped(text),
    // Below the headings of the page's own, of which that of a message is the third.
    heading({ tokens, depth }) {
      const tag = `h${Math.min(6, depth + 3)}`;
      return `<${tag}>${this.parser.parseInline(tokens)}</${tag}>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // A picture of another server would tell it what was said here.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    code: ({ text, lang }) => `<pre data-language="${escaped((lang ?? "").split(/\s/)[0])}"><code>${escaped(text)}</code></pre>`,
  },
});

marked.use({ extensions: mathExtensions((text, isDisplay) => `<code data-math="${isDisplay ? "display" : "inline"}">${escaped(text)}</code>`) });

/** A part of the page whose Markdown grows: what has not changed stays as it is, with what the user selected in it. */
export class Markdown {
  /** @param {HTMLElement} node gets the blocks of the text as children. */
  constructor(node) {
    this.node = node;
    this.blocks = [];
  }

  /** Shows a text. */
  show(text) {
    const tokens = lexed(text);
    const raws = tokens.map((token) => token.raw);
    let same = 0;
    while (same < raws.length && raws[same] === this.blocks[same]) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    for (const token of tokens.slice(same)) this.node.append(block(token));
    this.blocks = raws;
  }
}

/** The blocks of a text. One that is nested so deeply that the parser's stack ends is shown as it is. */
function lexed(text) {
  try {
    return marked.lexer(text);
  } catch {
    return [{ type: "plain", raw: text }];
  }
}

function block(token) {
  const plain = () => element("div", { class: "block plain", text: token.raw });
  if (token.type === "plain") return plain();
  try {
    return rendered(token);
  } catch {
    return plain();
  }
}

function rendered(token) {
  const fragment = DOMPurify.sanitize(marked.parser([token]), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const code of fragment.querySelectorAll("code[data-math]")) code.replaceWith(formula(code.textContent, code.dataset.math === "display"));
  for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre.textContent, pre.dataset.language ?? ""));
  for (const table of fragment.querySelectorAll("table")) {
    const around = element("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(around);
    around.append(table);
  }
  return element("div", { class: "block" }, fragment);
}

/** Code with its language, and a button that copies it. */
export function codeBlock(text, language) {
  const code = element("code", { text });
  codeNodes(text, language).then((nodes) => nodes && code.replaceChildren(nodes));
  return element("figure", { class: "code" },
    element("figcaption", {}, element("span", { text: language || "text" }), copyButton(() => text, "Copy code")),
    element("pre", { tabindex: "0" }, code));
}

/** A button that copies a text. */
export function copyButton(text, label) {
  const copy = button(label, async () => {
    try {
      await navigator.clipboard.writeText(text());
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }, { text: "Copy", class: "quiet" });
  return copy;
}

/** HTML that the server made of source code, as DOM: spans with classes, nothing else. */
export function highlighted(html) {
  return DOMPurify.sanitize(html, {
    ALLOWED_TAGS: ["div", "pre", "span", "code"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true,
  });
}

function escaped(text) {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

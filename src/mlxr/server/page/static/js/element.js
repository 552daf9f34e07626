// Makes elements. Text is set as text: nothing that a model wrote is ever read as HTML here.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element.
 * @param {string} tag
 * @param {Object} properties attributes; `on` has handlers by event, `text` the text; false, null and undefined: none.
 * @param {...(Node|string|null|undefined|false)} children
 */
export function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** An SVG element; arguments as for `element`. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (name === "text") {
      node.textContent = value;
    } else if (name === "value") {
      node.value = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A button. `label` is its text, or its name for screen readers if `properties.text` is something shorter. */
export function button(label, click, properties = {}) {
  const { text, ...others } = properties;
  const name = text === undefined ? {} : { "aria-label": label, title: label };
  return element("button", { type: "button", ...name, ...others, text: text ?? label, on: { click } });
}

let numFields = 0;

/** A control with its label, and a note that describes it. */
export function labelled(label, control, note = "") {
  const id = `field-${numFields += 1}`;
  control.id = id;
  if (note) control.setAttribute("aria-describedby", `${id}-note`);
  return element("div", { class: "field" }, element("label", { for: id, text: label }), control, note && element("small", { id: `${id}-note`, text: note }));
}

/** What screen readers say next. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

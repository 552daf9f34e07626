// Dark or light: as the system says, or as the user chose.

import { svg } from "./element.js";

const STORE = "mlxr-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const RAYS = [0, 45, 90, 135, 180, 225, 270, 315].map((angle) => {
  const [x, y] = [Math.cos((angle * Math.PI) / 180), Math.sin((angle * Math.PI) / 180)];
  return `M${10 + 6.2 * x} ${10 + 6.2 * y}L${10 + 8.6 * x} ${10 + 8.6 * y}`;
}).join("");
const PICTURES = { // a disc of which one half is dark, a sun, a moon
  auto: ["M10 2.5a7.5 7.5 0 0 0 0 15z", "M10 2.5a7.5 7.5 0 1 1 0 15a7.5 7.5 0 1 1 0 -15z"],
  light: ["M10 6.2a3.8 3.8 0 1 1 0 7.6a3.8 3.8 0 1 1 0 -7.6z", RAYS],
  dark: ["M16.5 12.4A7 7 0 1 1 7.6 3.5A5.6 5.6 0 0 0 16.5 12.4z", ""],
};

/** Sets the theme, and makes a button its switch. */
export function startTheme(button) {
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const [filled, drawn] = PICTURES[theme];
    button.replaceChildren(svg("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true" },
      svg("path", { class: "filled", d: filled }), svg("path", { class: "drawn", d: drawn })));
    button.setAttribute("aria-label", NAMES[theme]);
    button.title = NAMES[theme];
    button.dataset.theme = theme;
    document.dispatchEvent(new Event("themechange"));
  };
  button.addEventListener("click", () => {
    const theme = NEXT[button.dataset.theme];
    localStorage.setItem(STORE, theme);
    show(theme);
  });
  const kept = localStorage.getItem(STORE);
  show(kept in NEXT ? kept : "auto");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
}

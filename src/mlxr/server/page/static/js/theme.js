// Dark or light: as the system says, or as the user chose.

const STORE = "mlxr-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const NAMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

/** Sets the theme, and makes a button its switch. */
export function startTheme(button) {
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
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

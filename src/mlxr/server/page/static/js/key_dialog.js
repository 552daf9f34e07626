// Asks for the server's API key: one dialog at a time, however many requests wait for it.

import { hasKey, setKey } from "./api.js";

let asking = null;

/** Opens the dialog; returns whether a key was given. */
export function askForKey(problem) {
  asking ??= ask(problem).finally(() => { asking = null; });
  return asking;
}

function ask(problem) {
  const dialog = document.getElementById("key-dialog");
  const input = document.getElementById("key-input");
  document.getElementById("key-error").textContent = problem;
  input.value = "";
  dialog.returnValue = "cancel"; // what Escape means
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "ok" && input.value.trim();
      if (given) setKey(given, document.getElementById("key-remember").checked);
      input.value = "";
      document.getElementById("key").hidden = !hasKey();
      resolve(Boolean(given));
    }, { once: true });
  });
}

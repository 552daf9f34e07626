// Has the server fetch a model from the hub, if it was started with --allow-pull.

import { ApiError, send } from "./api.js";
import { announce } from "./element.js";
import { records } from "./event_stream.js";
import { arrived } from "./models.js";

let running = null; // the AbortController of a fetch under way

/**
 * Shows the button that opens the dialog.
 * @param {HTMLButtonElement} button
 * @param {boolean} isAllowed whether the server fetches models.
 */
export function startPulling(button, isAllowed) {
  const dialog = document.getElementById("pull-dialog");
  button.hidden = !isAllowed;
  button.addEventListener("click", () => {
    tell("");
    dialog.showModal();
    document.getElementById("pull-name").focus();
  });
  document.getElementById("pull-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) pull(dialog, document.getElementById("pull-name").value.trim());
  });
  document.getElementById("pull-cancel").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => running?.abort());
}

async function pull(dialog, name) {
  if (!name) return;
  running = new AbortController();
  document.getElementById("pull-start").disabled = true;
  tell("asking the hub");
  try {
    const response = await send("/api/pull", { body: { model: name }, signal: running.signal });
    let isHere = false;
    for await (const step of records(response)) {
      if (step.error) throw new ApiError(0, step.error);
      isHere = step.status === "success";
      tell(step.status, step.completed, step.total);
    }
    if (!isHere) throw new ApiError(0, "the fetch broke off: the server has gone; what was fetched is kept");
    await arrived(name.replace(/^(https:\/\/)?(hf\.co|huggingface\.co)\//, "").replace(/:latest$/, ""));
    announce(`${name} is here.`);
    running = null;
    dialog.close();
  } catch (error) {
    if (error.name !== "AbortError") tell("", undefined, undefined, error.message);
  } finally {
    running = null;
    document.getElementById("pull-start").disabled = false;
  }
}

function tell(text, done, total, problem = "") {
  const bar = document.getElementById("pull-bar");
  bar.hidden = !text;
  if (total) { bar.max = total; bar.value = done ?? 0; } else { bar.removeAttribute("value"); }
  document.getElementById("pull-state").textContent = total ? `${text}: ${Math.floor((100 * (done ?? 0)) / total)} %` : text;
  document.getElementById("pull-error").textContent = problem;
}

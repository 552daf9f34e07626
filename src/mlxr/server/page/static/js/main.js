// Starts the page: its parts, the theme, the key.

import { getJson, hasKey, setKeyDialog } from "./api.js";
import { ChatView } from "./chat_view.js";
import { InspectorView } from "./inspector/inspector_view.js";
import { askForKey } from "./key_dialog.js";
import { startModelDialog } from "./model_dialog.js";
import * as models from "./models.js";
import { startPulling } from "./pull_dialog.js";
import { startTheme } from "./theme.js";

const PARTS = ["chat", "inspector"];

setKeyDialog(askForKey);
startTheme(document.getElementById("theme"));
const key = document.getElementById("key");
key.hidden = !hasKey();
key.addEventListener("click", () => askForKey(""));
const inspector = new InspectorView(document.getElementById("inspector"));
addEventListener("hashchange", route);
route();
startModelDialog(document.getElementById("model-about"));
await models.start();
const { allow_pull: allowsPull = false } = await getJson("/inspector/server").catch(() => ({}));
startPulling(document.getElementById("pull"), allowsPull);
await new ChatView(document.getElementById("chat")).start();

function route() {
  const [, name, view] = location.hash.split("/");
  const part = PARTS.includes(name) ? name : "chat";
  for (const other of PARTS) document.getElementById(other).hidden = other !== part;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.hash === `#/${part}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  models.offerForms(part === "inspector");
  inspector.show(part === "inspector" ? view ?? "" : null);
}

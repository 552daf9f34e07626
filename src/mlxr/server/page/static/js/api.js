// Requests to the server that the page came from.

const STORE = "mlxr-api-key";
let askForKey = async () => null;

/** An error that the server told, or that it cannot be reached. */
export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Sets what asks the user for a key: an async function of the last error's message, which returns null for none. */
export function setKeyDialog(dialog) {
  askForKey = dialog;
}

/** Sets the key of all requests from now on. */
export function setKey(key, remember) {
  localStorage.removeItem(STORE);
  sessionStorage.setItem(STORE, key);
  if (remember) localStorage.setItem(STORE, key);
}

function key() {
  return sessionStorage.getItem(STORE) ?? localStorage.getItem(STORE);
}

/** Whether a key is used. */
export function hasKey() {
  return Boolean(key());
}

/**
 * Sends a request; asks for a key and sends it again as long as the server says 401.
 * @param {string} path
 * @param {{body?: Object, method?: string, signal?: AbortSignal}} options a body is sent as JSON, by POST.
 * @returns {Promise<Response>} a response without error.
 * @throws {ApiError} also where there is no server; an AbortError as fetch throws it.
 */
export async function send(path, { body, method, signal } = {}) {
  for (;;) {
    const used = key();
    const headers = { ...(body && { "Content-Type": "application/json" }), ...(used && { Authorization: `Bearer ${used}` }) };
    let response;
    try {
      response = await fetch(path, {
        method: method ?? (body ? "POST" : "GET"), headers, body: body && JSON.stringify(body), signal, credentials: "omit",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "the server cannot be reached: is it still running?");
    }
    if (response.ok) return response;
    const error = await told(response);
    if (response.status !== 401) throw error;
    if (key() === used && !(await askForKey(used ? "This key is not known." : ""))) throw error;
  }
}

/** The JSON of a GET, with `query`'s fields in its address. */
export async function getJson(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const address = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  return (await send(address, { signal })).json();
}

async function told(response) {
  try {
    const { error } = await response.json();
    return new ApiError(response.status, error.message ?? String(error), error.code);
  } catch {
    return new ApiError(response.status, `the server answered ${response.status} ${response.statusText}`);
  }
}

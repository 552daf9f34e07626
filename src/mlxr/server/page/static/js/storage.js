// Conversations in the browser's IndexedDB. Where there is none (some private windows), they live as long as the page.

const STORE = "conversations";
let opening = null;
const inMemory = new Map();

/** All conversations, the newest first. */
export async function all() {
  const read = (await run("readonly", (store) => store.getAll())) ?? [...inMemory.values()];
  return read.sort((a, b) => b.updated - a.updated);
}

/** Whether conversations outlive the page. */
export async function isKept() {
  return (await open()) !== null;
}

/** Writes a conversation. */
export async function save(conversation) {
  if (!(await open())) inMemory.set(conversation.id, conversation);
  await run("readwrite", (store) => store.put(conversation));
}

/** Deletes a conversation. */
export async function remove(id) {
  inMemory.delete(id);
  await run("readwrite", (store) => store.delete(id));
}

async function run(mode, action) {
  const database = await open();
  return database && result(action(database.transaction(STORE, mode).objectStore(STORE)));
}

function open() {
  opening ??= (async () => {
    try {
      const request = indexedDB.open("mlxr", 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      return await result(request);
    } catch {
      return null;
    }
  })();
  return opening;
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

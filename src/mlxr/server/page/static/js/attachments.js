// Files that go with a message: their text is sent, in the message, below their names. Of a PDF it is the text on its
// pages, by pdf.js, which is loaded for the first one.

const MOST_BYTES = 32 << 20;
const MOST_CHARACTERS = 2_000_000; // far more than any context has room for
let loading = null;

/**
 * The text of a file.
 * @param {File} file
 * @returns {Promise<{name: string, text: string}>}
 * @throws {Error} for people: what is wrong with the file.
 */
export async function readAttachment(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${Math.round(file.size / (1 << 20))} MiB; 32 is the most`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const isPdf = String.fromCharCode(...bytes.subarray(0, 1024)).includes("%PDF-");
  const text = isPdf ? await textOfPdf(file.name, bytes) : textOf(file.name, bytes);
  if (!text.trim()) throw new Error(isPdf ? `${file.name} has no text: its pages may be pictures` : `${file.name} is empty`);
  if (text.length > MOST_CHARACTERS) throw new Error(`${file.name} has ${text.length.toLocaleString("en")} characters, more than any context`);
  return { name: file.name, text };
}

/** What is sent of a message: its text, below the files that it has. */
export function withAttachments({ content, attachments }) {
  if (!attachments?.length) return content;
  return [...attachments.map(({ name, text }) => `File ${name}:\n\n${text.trimEnd()}\n\n(end of ${name})`), content].filter(Boolean).join("\n\n");
}

function textOf(name, bytes) {
  const [first, second] = bytes;
  const encoding = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  let text;
  try {
    text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    text = null;
  }
  if (text === null || text.includes("\0")) throw new Error(`${name} is neither text nor a PDF`);
  return text;
}

async function textOfPdf(name, bytes) {
  const { getDocument } = await pdfLibrary();
  const task = getDocument({
    data: bytes, isEvalSupported: false, useWasm: false, useWorkerFetch: false, disableFontFace: true, useSystemFonts: false, verbosity: 0,
  });
  try {
    const file = await task.promise;
    const pages = [];
    for (let number = 1; number <= file.numPages; number += 1) {
      const { items } = await (await file.getPage(number)).getTextContent();
      pages.push(items.map(({ str, hasEOL }) => (str ?? "") + (hasEOL ? "\n" : "")).join(""));
    }
    return pages.join("\n\n");
  } catch (error) {
    throw new Error(error.name === "PasswordException" ? `${name} has a password` : `${name} cannot be read as a PDF: ${error.message}`);
  } finally {
    await task.destroy();
  }
}

/** Without a worker of its own: the policy of the page lets no address become one. */
function pdfLibrary() {
  loading ??= (async () => {
    globalThis.pdfjsWorker = await import("../vendored/pdfjs/pdf.worker.min.mjs");
    return import("../vendored/pdfjs/pdf.min.mjs");
  })();
  return loading;
}

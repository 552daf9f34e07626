// Server-sent events, as far as this server's streams use them, and lines of JSON.

/**
 * The events of a text in pieces, cut anywhere.
 * @param {AsyncIterable<string>} pieces
 * @yields {{data: string}|{comment: string}}
 */
export async function* parse(pieces) {
  let rest = "";
  let data = [];
  for await (const piece of pieces) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const whole of lines) {
      const line = whole.endsWith("\r") ? whole.slice(0, -1) : whole;
      if (line === "") {
        if (data.length) yield { data: data.join("\n") };
        data = [];
      } else if (line.startsWith(":")) {
        yield { comment: line.slice(1).trim() };
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

/** The events of a response. Leaving the loop ends the request. */
export async function* events(response) {
  yield* parse(texts(response.body));
}

/** The objects of a response with one in JSON on each line. Leaving the loop ends the request. */
export async function* records(response) {
  let rest = "";
  for await (const piece of texts(response.body)) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
  }
}

async function* texts(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

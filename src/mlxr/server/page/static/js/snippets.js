// How programs ask this server: texts to copy. Nothing here touches the page.

const ASK = "Why is the sky blue?";

/**
 * The texts, by client.
 * @param {{url: string, model: string, context: number|null, needsKey: boolean}} served `context`: tokens of prompt and
 *   answer; null: it is not known yet.
 * @returns {{name: string, language: string, text: string, note: string}[]}
 */
export function snippets({ url, model, context, needsKey }) {
  const key = needsKey ? "$MLXR_API_KEY" : "none";
  const note = needsKey ? "MLXR_API_KEY is the key that you gave this page." : "This server asks for no key; many clients want one, and any text will do.";
  const room = context ?? 8192;
  const answer = Math.min(32_000, Math.floor(room / 4));
  const counted = context === null ? " The context is a guess until the model is loaded." : ` The context, ${context.toLocaleString("en")} tokens, is what the server has room for.`;
  const python = needsKey ? 'os.environ["MLXR_API_KEY"]' : '"none"';
  const word = shell(model);
  return [
    { name: "curl", language: "bash", note, text: [
      `curl ${url}/v1/chat/completions \\`, ...(needsKey ? ['  -H "Authorization: Bearer $MLXR_API_KEY" \\'] : []), '  -H "Content-Type: application/json" \\',
      `  -d ${shell(JSON.stringify({ model, messages: [{ role: "user", content: ASK }], max_tokens: 100 }))}`].join("\n") },
    { name: "Python (openai)", language: "python", note, text: [
      ...(needsKey ? ["import os", ""] : []), "from openai import OpenAI", "", `client = OpenAI(base_url="${url}/v1", api_key=${python})`,
      "answer = client.chat.completions.create(", `    model=${JSON.stringify(model)},`, `    messages=[{"role": "user", "content": ${JSON.stringify(ASK)}}],`, "    max_tokens=100,", ")",
      "print(answer.choices[0].message.content)"].join("\n") },
    { name: "Any client of OpenAI's API", language: "text", note: note + counted, text: [
      `Base URL        ${url}/v1`, `API key         ${key}`, `Model           ${model}`, `Context length  ${room}`, `Longest answer  ${answer}`].join("\n") },
    { name: "Claude Code", language: "bash", note: `On the server's machine, this does the same: mlxr launch claude ${word}.${counted}`, text: [
      `export ANTHROPIC_BASE_URL=${url}`, `export ANTHROPIC_AUTH_TOKEN=${key}`, `export ANTHROPIC_MODEL=${word}`, `export ANTHROPIC_SMALL_FAST_MODEL=${word}`,
      `export CLAUDE_CODE_MAX_CONTEXT_TOKENS=${room}`, `export CLAUDE_CODE_MAX_OUTPUT_TOKENS=${answer}`, "claude"].join("\n") },
    { name: "Codex", language: "bash", note: `On the server's machine, this does the same: mlxr launch codex ${word}.${counted}`, text: [
      `export MLXR_API_KEY=${needsKey ? '"$MLXR_API_KEY"' : "none"}`, "codex \\",
      ...[["model", model], ["model_provider", "mlxr"], ["model_context_window", room], ["model_providers.mlxr.name", "MLXR"], ["model_providers.mlxr.base_url", `${url}/v1`],
        ["model_providers.mlxr.wire_api", "responses"], ["model_providers.mlxr.env_key", "MLXR_API_KEY"]].map(([name, value]) => `  -c ${shell(`${name}=${JSON.stringify(value)}`)} \\`),
      "  -c 'web_search=\"disabled\"'"].join("\n") },
    { name: "aider", language: "bash", note: note + counted, text: [
      `export OPENAI_API_BASE=${url}/v1`, `export OPENAI_API_KEY=${key}`,
      `echo ${shell(JSON.stringify({ [`openai/${model}`]: { litellm_provider: "openai", mode: "chat", max_input_tokens: room, max_output_tokens: answer, input_cost_per_token: 0, output_cost_per_token: 0 } }))} > mlxr.json`,
      `aider --model ${shell(`openai/${model}`)} --model-metadata-file mlxr.json`].join("\n") },
    { name: "Programs for Ollama", language: "bash", note: `Its API is at ${url}/api.`, text: [`export OLLAMA_HOST=${url}`, `ollama run ${word}`].join("\n") },
  ];
}

/** A word for a shell. */
function shell(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

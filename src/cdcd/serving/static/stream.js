// Requests to the server: JSON in, JSON or server-sent events out.

const TOKEN = "cdcd-token";

/** Takes the token out of the address, where it is, so that it is not copied with links. */
export function takeToken() {
  const parts = new URLSearchParams(location.hash.slice(1)),
    token = parts.get("token");
  if (!token) return;
  sessionStorage.setItem(TOKEN, token);
  parts.delete("token");
  history.replaceState(null, "", `${location.pathname}#${parts}`);
}

/**
 * @param {string} path
 * @param {object} [body]
 * @param {AbortSignal} [signal]
 */
export async function ask(path, body, signal) {
  const token = sessionStorage.getItem(TOKEN);
  /** @type {Record<string, string>} */
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const method = body ? "POST" : "GET";
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(await reason(answer));
  return answer;
}

/** @param {Response} answer */
async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the server answers ${answer.status}`;
  }
}

/**
 * Calls back with each event of an answer; an event of kind `error` becomes an error.
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} signal
 * @param {(kind: string, data: any) => void} take
 */
export async function stream(path, body, signal, take) {
  const answer = await ask(path, body, signal);
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  let waiting = "",
    isOver = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const events = (waiting + decoder.decode(value, { stream: true })).split("\n\n");
    waiting = events.pop() ?? "";
    for (const event of events) {
      const [kind, data] = parsed(event);
      if (kind === "error") throw new Error(data.message);
      isOver ||= kind === "end";
      take(kind, data);
    }
  }
  if (!isOver) throw new Error("the server has gone; is it still running?");
}

/**
 * @param {string} event
 * @returns {[string, any]}
 */
function parsed(event) {
  const lines = event.split("\n");
  const read = (/** @type {string} */ name) =>
    lines
      .filter((line) => line.startsWith(`${name}: `))
      .map((line) => line.slice(name.length + 2))
      .join("\n");
  return [read("event"), JSON.parse(read("data"))];
}

// What the server knows: JSON on request, and news as they come.

export class RequestError extends Error {}

/** Return the JSON of an address below /api; lists become repeated parameters. */
export async function get(path, parameters = {}) {
  return (await request(path, parameters)).json();
}

/** Call `take` with each JSON line of an answer as it comes. */
export async function stream(path, parameters, take, signal) {
  const response = await request(path, parameters, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(JSON.parse(line));
  }
}

async function request(path, parameters, options = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (Array.isArray(value)) for (const item of value) query.append(name, item);
    else if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const response = await fetch(`/api${path}${query.size ? `?${query}` : ""}`, options);
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new RequestError(body.error ?? `${path}: the server answered ${response.status}`);
  }
  return response;
}

/** Path of a run's part of the API. */
export function ofRun(run, part) {
  return `/runs/${encodeURIComponent(run)}/${part}`;
}

/** Call `onstates` with the state of all runs whenever it changes, and `onlink` with whether the server answers. */
export function follow(onstates, onlink) {
  let source;
  const open = () => {
    source = new EventSource("/api/events");
    source.onmessage = (event) => onstates(JSON.parse(event.data));
    source.onopen = () => onlink(true);
    source.onerror = () => onlink(false);
  };
  // Browsers allow six connections to a server for all tabs together, so a hidden tab gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source.close();
    else open();
  });
  open();
}

// State of a run as a coloured word.

import { h } from "./dom.js";

const STATUS = {
  running: ["good.live", "running", "a process holds the lock of its folder"],
  finished: ["accent", "finished", "result.json is there"],
  stopped: ["bad", "stopped", "no process holds its folder and there is no result: it crashed or was interrupted"],
};

export function statusPill(state) {
  const [kind, text, title] = STATUS[state.status];
  return h(`span.pill.${kind}`, { title }, h("span.dot"), text);
}

// The messages, turns, calls and results of a trajectory as text.

import { h } from "./dom.js";
import { seconds, number } from "./format.js";

const LONG_LINES = 60;
const LONG_CHARACTERS = 6000;

export function conversation(record, prompt) {
  const messages = prompt ? prompt.messages : [];
  return h("div.conversation", null,
    !prompt && h("div.banner", null, "The prompt of this trajectory is not in the record."),
    messages.map((message) => entry(String(message.role ?? ""), roleKind(message.role), text(message.content))),
    record.turns.map((turn, index) => turnEntries(turn, index)),
    record.failures.map((failure) => entry("failed attempt", "failure",
      [h("p", null, h("span.pill.bad", null, failure.failure_class), " ", h("span.mono", null, failure.cause ?? "")), block(failure.message)], duration(failure.attempt))));
}

function roleKind(role) {
  return ["system", "user", "assistant", "tool"].includes(role) ? role : "user";
}

function entry(label, kind, content, note, properties = {}) {
  return h(`article.entry.${kind}`, properties, h("div.who", null, h("b", null, label), note && h("span.num.faint", null, note)), h("div.what", null, content));
}

function turnEntries(turn, index) {
  const calls = turn.calls.map((call, at) => callEntry(call, turn.results[at]));
  return [
    entry(`turn ${index + 1}`, "policy", [text(turn.text), reward("environment", turn.environment_reward), reward("tools at the end", turn.final_tool_reward)],
      duration(turn.sampled), { "data-turn": index }),
    calls,
    turn.observation !== undefined && turn.observation !== null && entry("environment", "tool", text(turn.observation), duration(turn.answered)),
  ];
}

function callEntry(call, result) {
  const status = result?.status ?? "not run";
  const kind = status === "ok" ? "good" : result ? "bad" : "warn";
  const times = result && result.wall_time_s ? seconds(result.wall_time_s) + (result.queue_s ? `, ${seconds(result.queue_s)} queued` : "") : null;
  return entry("tool", "tool", [
    h("div.call", null, h("div.call-head", null, h("b.mono", null, call.name || "(no tool named)"), h("span.pill", { class: kind }, status.replaceAll("_", " ")),
      result?.truncated && h("span.pill.warn", null, "cut"), result?.cause && h("span.mono.bad", null, result.cause), reward("", result?.reward)),
    call.parse_error ? block(call.parse_error, "bad") : argumentsOf(call.arguments)),
    result ? block(result.text, "result") : h("p.muted", null, "The episode ended before this call."),
  ], times);
}

/** Arguments, each by its name; programs as they were written. */
function argumentsOf(encoded) {
  let values;
  try {
    values = typeof encoded === "string" ? JSON.parse(encoded) : encoded;
  } catch {
    return block(encoded);
  }
  const entries = Object.entries(values ?? {});
  if (!entries.length) return h("p.faint", null, "no arguments");
  return h("dl.arguments", null, entries.map(([name, value]) => [h("dt.mono", null, name),
    h("dd", null, block(typeof value === "string" ? value : JSON.stringify(value, null, 2)))]));
}

function reward(label, value) {
  if (value === null || value === undefined) return null;
  return h("span.pill", { class: value > 0 ? "good" : value < 0 ? "bad" : "" }, `${label} reward ${number(value)}`.trim());
}

function duration(span) {
  return span ? seconds(span.ended_at - span.started_at) : null;
}

function text(content) {
  return block(typeof content === "string" ? content : JSON.stringify(content ?? null, null, 2), "prose");
}

/** A text; a long one is folded until asked for. */
function block(value, kind = "") {
  const content = String(value ?? "").replace(/\n+$/, "");
  const lines = content.split("\n");
  if (lines.length <= LONG_LINES && content.length <= LONG_CHARACTERS) return h("pre.block", { class: kind }, content);
  const shown = lines.slice(0, LONG_LINES / 2).join("\n").slice(0, LONG_CHARACTERS / 2);
  const area = h("pre.block", { class: kind }, shown);
  const button = h("button.button", { type: "button", onclick: () => {
    area.textContent = content;
    button.remove();
  } }, `Show all ${content.length.toLocaleString("en-US")} characters`);
  return [area, button];
}

// Times of a trajectory: bars on one axis in lanes, so that what ran at the same time is seen, and wall time by its parts.

import { h } from "./dom.js";
import { seconds } from "./format.js";

const NUM_TICKS = 6;

/** The lanes of a record; `onturn` gets the number of a turn whose bar is clicked. */
export function timeline(record, onturn) {
  const lanes = lanesOf(record);
  const bars = lanes.flatMap((lane) => lane.bars);
  if (!bars.length) return h("section.panel.timeline", null, h("p.muted", null, "No times are recorded."));
  const start = Math.min(record.span?.started_at ?? Infinity, ...bars.map((bar) => bar.start));
  const end = Math.max(record.span?.ended_at ?? -Infinity, ...bars.map((bar) => bar.end), start + 1e-6);
  const share = (time) => `${(100 * (time - start)) / (end - start)}%`;
  const step = niceStep((end - start) / NUM_TICKS);
  const ticks = [];
  for (let at = 0; at <= end - start; at += step) ticks.push(h("span", { vars: { left: share(start + at) } }, at === 0 ? "0" : axisLabel(at, step)));
  return h("section.panel.timeline", { "aria-label": "times" },
    lanes.map((lane) => h("div.lane", null, h("div.lane-name", null, lane.name), h("div.lane-bars", null, lane.bars.map((bar) =>
      h("button.bar", { type: "button", class: `${bar.kind}`, title: bar.title, vars: { left: share(bar.start), width: `max(2px, ${(100 * (bar.end - bar.start)) / (end - start)}%)` },
        onclick: () => bar.turn !== undefined && onturn(bar.turn) },
      bar.queue > 0 && h("i.queue", { vars: { width: `${Math.min(100, (100 * bar.queue) / (bar.end - bar.start))}%` } })))))),
    h("div.lane.axis", null, h("div.lane-name"), h("div.lane-bars.num", null, ticks)),
    h("div.keys", null, [["sampled", "sampling"], ["ok", "tool"], ["failed", "failed"], ["scored", "reward"], ["queued", "queue"]].map(([kind, label]) =>
      h("span", null, h("i", { class: kind }), label))));
}

function lanesOf(record) {
  const attempts = record.failures.filter((failure) => failure.attempt).map(({ attempt, failure_class: name, message }) =>
    bar(attempt.started_at, attempt.ended_at, "failed", `failed attempt, ${name}: ${message}`));
  const sampled = [], tools = [], answers = [];
  record.turns.forEach((turn, index) => {
    if (turn.sampled) sampled.push(bar(turn.sampled.started_at, turn.sampled.ended_at, "sampled", `turn ${index + 1}: sampling`, turn.sampled.queue_s, index));
    if (!turn.answered) return;
    const start = turn.answered.started_at;
    turn.results.forEach((result, at) => {
      const kind = result.status === "ok" ? "ok" : "failed";
      tools.push(bar(start, start + result.wall_time_s, kind, `turn ${index + 1}: ${turn.calls[at].name || "call"}, ${result.status}`, result.queue_s, index));
    });
    if (!turn.results.length) answers.push(bar(start, turn.answered.ended_at, "ok", `turn ${index + 1}: environment`, turn.answered.queue_s, index));
  });
  const scored = record.scored ? [bar(record.scored.started_at, record.scored.ended_at, "scored", "reward", record.scored.queue_s)] : [];
  const toolLanes = packed(tools).map((bars, index) => ({ name: index ? "" : "tools", bars }));
  return [{ name: "attempts", bars: attempts }, { name: "policy", bars: sampled }, ...toolLanes, { name: "environment", bars: answers }, { name: "reward", bars: scored }]
    .filter((lane) => lane.bars.length);
}

function bar(start, end, kind, title, queue = 0, turn = undefined) {
  const queued = queue > 0 ? `, ${seconds(queue)} of it queued` : "";
  return { start, end, kind, queue, turn, title: `${title}, ${seconds(end - start)}${queued}` };
}

/** Bars in as few lanes as have no overlap. */
function packed(bars) {
  const lanes = [];
  for (const item of [...bars].sort((a, b) => a.start - b.start)) {
    const lane = lanes.find((other) => other.at(-1).end <= item.start + 1e-4);
    if (lane) lane.push(item);
    else lanes.push([item]);
  }
  return lanes;
}

function niceStep(rough) {
  const size = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * size).find((step) => step >= rough);
}

function axisLabel(at, step) {
  if (at >= 120) return `${Math.round(at)} s`;
  return step < 0.9995 ? `${at.toFixed(Math.max(1, -Math.floor(Math.log10(step))))} s` : `${Math.round(at)} s`;
}

const PARTS = [
  ["generate_s", "sampling", "--c1"], ["engine_queue_s", "engine queue", "--c6"], ["tool_s", "tools", "--c3"], ["judge_queue_s", "judge queue", "--c2"],
  ["reward_s", "reward", "--c5"], ["reward_queue_s", "reward queue", "--c4"], ["tokenise_s", "tokenising", "--c7"], ["retry_s", "retries", "--bad"],
  ["dispatch_s", "dispatch", "--faint"], ["admission_wait_s", "admission", "--none"], ["tail_wait_s", "wait for the batch", "--none"],
];

/** Wall time by its parts, the longest first. */
export function timeSplit(times) {
  const parts = PARTS.map(([name, label, color]) => ({ label, color, value: times[name] ?? 0 })).filter(({ value }) => value > 0).sort((a, b) => b.value - a.value);
  const total = parts.reduce((sum, { value }) => sum + value, 0);
  if (!total) return h("p.faint", null, "not recorded");
  return h("div", null, h("div.split", null, parts.map(({ label, color, value }) => h("i", { title: `${label} ${seconds(value)}`, vars: { width: `${(100 * value) / total}%`, background: `var(${color})` } }))),
    h("dl.facts-list", null, parts.filter(({ value }) => value / total > 0.005).map(({ label, color, value }) =>
      [h("dt.swatched", { vars: { "--swatch": `var(${color})` } }, h("i"), label), h("dd.num", null, seconds(value))])));
}

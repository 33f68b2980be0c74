// Failures in clusters by their cause, over steps: attempts that the infrastructure or the data failed, and failed tool calls.

import { h, fill } from "../dom.js";
import { count, plural, stepName } from "../format.js";
import { get, stream, ofRun } from "../server.js";
import { keepFilters } from "./step.js";

export const tab = "failures";
const MAX_BARS = 80;

export async function show(root, context) {
  const page = new Failures(root, context);
  await page.load();
  return page;
}

class Failures {
  constructor(root, context) {
    Object.assign(this, { root, context, run: context.run });
  }

  async load() {
    this.attempts = h("div.panel.clusters");
    this.calls = h("div.panel.clusters");
    this.progress = h("span.muted.num");
    fill(this.root,
      h("div.head", null, h("h1", null, "Failed attempts"), h("span.muted", null, "of the infrastructure or the data, by class and cause; retries included")), this.attempts,
      h("div.head.second", null, h("h1", null, "Failed tool calls"), h("span.muted", null, "by tool, status and last line of the result"), this.progress), this.calls);
    await this.loadAttempts();
    this.scan();
  }

  async loadAttempts() {
    const [{ clusters }, { files }] = await Promise.all([get(ofRun(this.run, "failures")), get(ofRun(this.run, "steps"))]);
    this.rollouts = files.filter((file) => file.startsWith("step")).map((file) => Number(file.split("_")[1]));
    if (!clusters.length) { fill(this.attempts, h("div.empty", null, "No attempt failed.")); return; }
    fill(this.attempts, clusters.map((cluster) => this.row({
      pill: cluster.failure_class, cause: cluster.failure_cause, total: cluster.count, steps: cluster.steps,
      note: cluster.num_lost ? `${plural(cluster.num_lost, "trajectory").replace(/ys$/, "ies")} lost` : "all retried with success",
      onopen: () => {
        keepFilters(this.run, { failure_class: cluster.failure_class, failure_cause: cluster.failure_cause });
        this.context.go(this.run, "step", "all");
      },
    })));
  }

  async scan() {
    this.stop = new AbortController();
    fill(this.calls, h("div.empty", null, "Reading the records, the newest step first …"));
    try {
      await stream(ofRun(this.run, "failed_calls"), {}, (item) => this.take(item), this.stop.signal);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.calls, h("div.banner.bad", null, error.message));
    }
  }

  take(item) {
    if (item.error) { fill(this.calls, h("div.banner.bad", null, item.error)); return; }
    if (item.clusters) {
      this.clusters = item.clusters;
      this.progress.textContent = `back to ${stepName(item.last)} …`;
      if (performance.now() - (this.drawnAt ?? 0) < 400) return;
    } else {
      this.progress.textContent = item.timed_out_s ? `the newest steps, as far as ${item.timed_out_s} s reach` : "";
    }
    this.drawnAt = performance.now();
    const clusters = this.clusters ?? [];
    if (!clusters.length) { if (item.done) fill(this.calls, h("div.empty", null, "No tool call failed.")); return; }
    fill(this.calls, clusters.slice(0, 40).map((cluster) => this.row({
      pill: cluster.status, tool: cluster.tool || "(no tool named)", cause: cluster.cause, total: cluster.count,
      steps: Object.entries(cluster.steps).filter(([file]) => file.startsWith("step")).map(([file, value]) => [Number(file.split("_")[1]), value]),
      onopen: () => this.context.go(this.run, "trajectory", cluster.file, cluster.offset),
    })));
  }

  row({ pill, tool, cause, total, steps, note, onopen }) {
    return h("button.cluster", { type: "button", onclick: onopen, title: cause }, h("span.pill.bad", null, pill.replaceAll("_", " ")),
      h("span.cause", null, tool && h("b.mono", null, tool), h("code", null, cause || "(no text)"), note && h("span.muted", null, note)), this.bars(steps), h("b.num.total", null, count(total)));
  }

  /** Counts over the steps of the run, as bars. */
  bars(steps) {
    const all = this.rollouts, width = Math.max(1, Math.ceil(all.length / MAX_BARS));
    const counts = new Array(Math.ceil(all.length / width)).fill(0);
    const positions = new Map(all.map((step, index) => [step, Math.floor(index / width)]));
    for (const [step, value] of steps) if (positions.has(step)) counts[positions.get(step)] += value;
    const most = Math.max(1, ...counts);
    return h("span.spark", { "aria-hidden": "true" }, counts.map((value) => h("i", { vars: { height: value ? `max(2px, ${(100 * value) / most}%)` : "0" } })));
  }

  up() {
    this.context.go(this.run, "overview");
  }

  close() {
    this.stop?.abort();
  }
}

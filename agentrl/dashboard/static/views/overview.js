// Overview of a run: its state, headline figures, the curves that matter, any other metric, config and log.

import { h, fill, segments, debounced } from "../dom.js";
import { number, seconds, count } from "../format.js";
import { get, ofRun } from "../server.js";
import { Chart } from "../charts.js";
import { PANELS, timeParts } from "./panels.js";
import { WATCHED, alarms } from "./alarms.js";

export const tab = "overview";
const SMOOTHING = { 0: "Raw", 0.6: "Smooth", 0.9: "Smoother" };
const MAX_FOUND = 24;
const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];

export async function show(root, context) {
  const page = new Overview(root, context);
  await page.load();
  return page;
}

class Overview {
  constructor(root, context) {
    Object.assign(this, { root, context, charts: new Map(), pinned: readPins() });
    this.smoothing = localStorage.getItem("smoothing") ?? "0";
    this.search = "";
  }

  async load() {
    const run = this.context.run;
    const [first, about] = await Promise.all([get(ofRun(run, "metrics")), get(ofRun(run, "about"))]);
    this.latest = first.latest;
    this.about = about;
    this.tiles = h("div.panel.tiles");
    this.banner = h("div");
    this.grid = h("div.charts");
    this.found = h("div.charts");
    this.total = h("span.muted");
    const field = h("input.field", { type: "search", placeholder: "Metric name", "data-filter": true, size: 28,
      oninput: debounced(120, (event) => this.find(event.target.value)) });
    this.curves = h("div", null, this.tiles,
      h("div.head", null, h("h1", null, "Curves"), h("span.muted", null, "drag to zoom, double click to reset, click to open a step"),
        h("div.grow"), segments(SMOOTHING, this.smoothing, (value) => this.smooth(value), "smoothing")),
      this.grid,
      h("div.head", null, h("h1", null, "All metrics"), this.total, h("div.grow"), field),
      this.found);
    fill(this.root, this.banner, this.curves, this.resultPanel = h("details.panel"), this.configPanel(), this.logPanel = h("details.panel"));
    this.drawLog();
    await this.refresh();
    this.drawResult();
  }

  ready() {
    for (const chart of this.charts.values()) chart.resize();
  }

  /** Names of all series that are drawn. */
  wanted() {
    const names = new Set();
    for (const panel of [...this.panels(), ...this.extras()]) for (const item of panel.series) names.add(item.name);
    return [...new Set([...names, ...WATCHED, "time/step_s"])].filter((name) => name in this.latest);
  }

  panels() {
    return PANELS.map((panel) => panel.name === "time" ? { ...panel, series: timeParts(this.latest) } : panel)
      .map((panel) => ({ ...panel, series: panel.series.filter((item) => item.name in this.latest) }))
      .filter((panel) => panel.series.length);
  }

  extras() {
    const terms = this.search.toLowerCase().split(/\s+/).filter(Boolean);
    const names = Object.keys(this.latest).sort();
    const matching = terms.length ? names.filter((name) => terms.every((term) => name.toLowerCase().includes(term))) : [];
    this.numMatching = matching.length;
    const shown = [...new Set([...this.pinned.filter((name) => name in this.latest), ...matching.slice(0, MAX_FOUND)])];
    return shown.map((name, index) => ({ title: name, series: [{ name, label: "", color: COLORS[index % COLORS.length] }], extra: true }));
  }

  async refresh() {
    const { steps, latest, series } = await get(ofRun(this.context.run, "metrics"), { name: this.wanted() });
    const isNew = Object.keys(latest).length !== Object.keys(this.latest).length;
    Object.assign(this, { latest, steps, values: series });
    if (isNew) return this.refresh();
    this.drawTiles();
    this.drawBanner();
    this.drawCharts();
    return undefined;
  }

  drawCharts() {
    const panels = this.panels(), extras = this.extras();
    const keep = new Set();
    for (const panel of [...panels, ...extras]) {
      const key = `${panel.extra ? "extra" : "main"}:${panel.title}:${panel.series.map((item) => item.name)}`;
      keep.add(key);
      if (!this.charts.has(key)) this.charts.set(key, this.chart(panel));
      const chart = this.charts.get(key);
      (panel.extra ? this.found : this.grid).append(chart.element);
      chart.set(this.steps, panel.series.map((item) => this.values[item.name] ?? []));
    }
    for (const [key, chart] of this.charts) {
      if (keep.has(key)) continue;
      chart.element.remove();
      chart.close();
      this.charts.delete(key);
    }
    const total = `${count(Object.keys(this.latest).length)} metrics`;
    this.total.textContent = !this.search ? total
      : `${count(this.numMatching)} match${this.numMatching > MAX_FOUND ? `, the first ${MAX_FOUND} are shown` : ""}`;
  }

  chart(panel) {
    const tools = panel.extra && h("button.pin", { type: "button", title: "Keep on this page",
      "aria-pressed": String(this.pinned.includes(panel.title)), onclick: (event) => this.pin(panel.title, event.target) }, "★");
    const chart = new Chart({ ...panel, tools, onstep: (step) => this.openStep(step) });
    chart.smoothing = Number(this.smoothing);
    return chart;
  }

  openStep(step) {
    if (step > 0) this.context.go(this.context.run, "step", `step_${String(step).padStart(6, "0")}`);
  }

  drawTiles() {
    const { latest } = this, state = this.state ?? this.context.state;
    const done = state.last_step ?? 0, total = state.num_steps;
    const tile = (label, name, format = number) => {
      const [step, value] = latest[name] ?? [null, null];
      const first = this.first(name);
      const note = value === null ? "no value yet" : first && first[0] !== step ? `${format(first[1])} at step ${first[0]}` : `step ${step}`;
      return h("div.tile", null, h("div.label", null, label), h("div.value.num", null, format(value)), h("div.note.num", null, note));
    };
    const left = this.timeLeft(state);
    fill(this.tiles,
      h("div.tile", null, h("div.label", null, left ? `Step · ${left}` : "Step"),
        h("div.value.num", null, count(done), total ? h("small", null, ` / ${count(total)}`) : ""),
        total ? h("div.progress", null, h("i", { vars: { width: `${Math.min(100, 100 * done / total)}%` } })) : h("div.note")),
      ...this.headlines().map((item) => tile(...item)));
  }

  headlines() {
    const losses = [["Training loss", "sft/loss"], ["Validation loss", "validation/loss"]].filter(([, name]) => name in this.latest);
    const rest = [["Validation accuracy", "validation/accuracy"], ["Training reward", "rollout/reward_mean"],
      ["Tool calls that succeed", "rollout/tool_success_rate"], ["Response tokens", "rollout/response_tokens_mean"],
      ["Step time", "time/step_s", seconds]];
    return losses.length ? losses : rest;
  }

  first(name) {
    const column = this.values[name];
    const index = column ? column.findIndex((value) => value !== null) : -1;
    return index < 0 ? null : [this.steps[index], column[index]];
  }

  timeLeft(state) {
    const times = (this.values["time/step_s"] ?? []).filter((value) => value !== null).slice(-20);
    if (state.status !== "running" || !times.length || !state.num_steps) return "";
    const mean = times.reduce((sum, value) => sum + value, 0) / times.length;
    return `about ${seconds(mean * (state.num_steps - (state.last_step ?? 0)))} left`;
  }

  drawBanner() {
    const state = this.state ?? this.context.state;
    const banners = [];
    if (state.problem) banners.push(h("div.banner.bad", null, state.problem));
    if (state.status === "stopped") {
      const lines = this.about.log.slice(-6).join("\n");
      banners.push(h("div.banner.bad", null, `Stopped after step ${state.last_step ?? 0}: no process holds the run's folder, and it has no result.`,
        lines && h("pre", null, lines)));
    }
    const warnings = alarms(this.steps, this.values);
    if (warnings.length) banners.push(h("div.banner.warn", { role: "status" }, warnings.map((text) => h("p", null, text))));
    fill(this.banner, banners);
  }

  configPanel() {
    return h("details.panel", null, h("summary", null, "Config", h("span", null, this.about.path)), entries(this.about.config));
  }

  /** What the run left at its end; of an evaluation, which has no curves, these are the figures. */
  drawResult() {
    const { result } = this.about;
    this.resultPanel.hidden = !Object.keys(result).length;
    fill(this.resultPanel, h("summary", null, "Result", h("span", null, "result.json")), entries(result));
    const hasNoCurves = !this.steps.length && !this.resultPanel.hidden;
    this.resultPanel.open ||= hasNoCurves;
    this.curves.hidden = hasNoCurves;
  }

  drawLog() {
    const isOpen = this.logPanel.open;
    fill(this.logPanel, h("summary", null, "Log", h("span", null, `last ${this.about.log.length} lines of run.log`)), h("pre", null, this.about.log.join("\n")));
    this.logPanel.open = isOpen;
  }

  find(text) {
    this.search = text;
    this.refresh();
  }

  pin(name, button) {
    this.pinned = this.pinned.includes(name) ? this.pinned.filter((item) => item !== name) : [...this.pinned, name];
    localStorage.setItem("pins", JSON.stringify(this.pinned));
    button.setAttribute("aria-pressed", String(this.pinned.includes(name)));
  }

  smooth(value) {
    this.smoothing = value;
    localStorage.setItem("smoothing", value);
    for (const chart of this.charts.values()) chart.smooth(Number(value));
  }

  async onNews(state, before) {
    this.state = state;
    if (state.status !== before?.status) {
      this.about = await get(ofRun(this.context.run, "about"));
      this.drawLog();
      this.drawResult();
    }
    await this.refresh();
  }

  close() {
    for (const chart of this.charts.values()) chart.close();
  }
}

function readPins() {
  try {
    return JSON.parse(localStorage.getItem("pins") ?? "[]");
  } catch {
    return [];
  }
}

function entries(value) {
  return h("div.config", null, flattened(value).map(([key, text]) => [h("span", null, key), h("span", null, text)]));
}

/** Return the leaves of a config as [key, text]. */
export function flattened(value, prefix = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[prefix, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([key, item]) => flattened(item, prefix ? `${prefix}.${key}` : key));
}

// Runs compared: what differs in their configs, then their curves on top of one another.

import { h, fill, segments, debounced } from "../dom.js";
import { number, count } from "../format.js";
import { get, ofRun } from "../server.js";
import { Chart } from "../charts.js";
import { flattened } from "./overview.js";
import { statusPill } from "../status.js";

export const tab = "compare";
const COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const MAIN = ["validation/accuracy", "rollout/reward_mean", "rollout/tool_success_rate", "rollout/tool_call_share", "rollout/response_tokens_mean", "actor/entropy",
  "actor/rollout_kl", "actor/grad_norm", "time/step_s", "validation/loss", "sft/loss"];
const OF_THE_PLACE = new Set(["run.dir"]);
const MAX_FOUND = 12;

export async function show(root, context) {
  const page = new Compare(root, context);
  await page.load();
  return page;
}

class Compare {
  constructor(root, context) {
    Object.assign(this, { root, context, charts: [], runs: context.states.map(({ key }) => key), search: "" });
    this.smoothing = localStorage.getItem("smoothing") ?? "0";
  }

  async load() {
    const [abouts, metrics] = await Promise.all([
      Promise.all(this.runs.map((run) => get(ofRun(run, "about")))), Promise.all(this.runs.map((run) => get(ofRun(run, "metrics"))))]);
    this.latest = metrics.map((item) => item.latest);
    this.main = h("div.charts");
    this.found = h("div.charts");
    this.figures = h("div");
    this.total = h("span.muted");
    const field = h("input.field", { type: "search", placeholder: "Metric name", "data-filter": true, size: 28, oninput: debounced(150, (event) => this.find(event.target.value)) });
    fill(this.root, h("div.head", null, h("h1", null, "Config"), h("span.muted", null, "what differs")), this.differences(abouts),
      h("div.head.second", null, h("h1", null, "Last figures")), this.figures,
      h("div.head.second", null, h("h1", null, "Curves"), h("div.grow"), segments({ 0: "Raw", 0.6: "Smooth", 0.9: "Smoother" }, this.smoothing, (value) => this.smooth(value), "smoothing")), this.main,
      h("div.head", null, h("h1", null, "Other metrics"), this.total, h("div.grow"), field), this.found);
    this.drawFigures();
    await this.drawCharts(this.main, MAIN.filter((name) => this.latest.some((item) => name in item)));
  }

  ready() {
    for (const chart of this.charts) chart.resize();
  }

  name(index) {
    return h("span.swatched", { vars: { "--swatch": `var(${COLORS[index % COLORS.length]})` } }, h("i"), this.runs[index]);
  }

  differences(abouts) {
    const configs = abouts.map(({ config }) => new Map(flattened(config)));
    const keys = [...new Set(configs.flatMap((config) => [...config.keys()]))].filter((key) => !OF_THE_PLACE.has(key));
    const rows = keys.filter((key) => new Set(configs.map((config) => config.get(key))).size > 1);
    if (!rows.length) return h("div.panel.empty", null, "The configs are equal.");
    return this.grid(rows.map((key) => [h("code", null, key), ...configs.map((config) => h("code", null, config.get(key) ?? "–"))]));
  }

  drawFigures() {
    const states = this.context.states;
    const rows = [["", ...states.map(statusPill)], ["steps", ...states.map((state) => `${count(state.last_step)}${state.num_steps ? ` / ${count(state.num_steps)}` : ""}`)],
      ...MAIN.filter((name) => this.latest.some((item) => name in item)).map((name) => [h("code", null, name), ...this.latest.map((item) => (name in item ? number(item[name][1]) : "–"))])];
    fill(this.figures, this.grid(rows, ".num"));
  }

  grid(rows, kind = "") {
    return h("div.table.panel.plain", null, h(`table${kind}`, null, h("thead", null, h("tr", null, h("th.text"), this.runs.map((_, index) => h("th.text", null, this.name(index))))),
      h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell) => h("td.text", null, cell)))))));
  }

  async drawCharts(target, names) {
    const { steps, of } = await this.columns(names);
    for (const name of names) {
      const chart = new Chart({ title: name, series: this.runs.map((run, index) => ({ name: run, label: run, color: COLORS[index % COLORS.length] })) });
      chart.smoothing = Number(this.smoothing);
      target.append(chart.element);
      this.charts.push(chart);
      chart.set(steps, of(name));
    }
  }

  async onAnyNews(states) {
    this.context.states = states;
    this.latest = (await Promise.all(this.runs.map((run) => get(ofRun(run, "metrics"))))).map((item) => item.latest);
    this.drawFigures();
    const names = this.charts.map((chart) => chart.title);
    const data = await this.columns(names);
    for (const chart of this.charts) chart.set(data.steps, data.of(chart.title));
  }

  /** Columns of metrics over the steps of all runs. */
  async columns(names) {
    const runs = await Promise.all(this.runs.map((run) => get(ofRun(run, "metrics"), { name: names })));
    const steps = [...new Set(runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
    const positions = new Map(steps.map((step, index) => [step, index]));
    const of = (name) => runs.map((run) => {
      const column = new Array(steps.length).fill(null);
      run.steps.forEach((step, index) => { column[positions.get(step)] = run.series[name]?.[index] ?? null; });
      return column;
    });
    return { steps, of };
  }

  async find(text) {
    const terms = text.toLowerCase().split(/\s+/).filter(Boolean);
    const names = [...new Set(this.latest.flatMap((item) => Object.keys(item)))].sort();
    const matching = terms.length ? names.filter((name) => terms.every((term) => name.toLowerCase().includes(term))) : [];
    this.total.textContent = terms.length ? `${count(matching.length)} match` : "";
    for (const chart of this.charts.filter(({ element }) => this.found.contains(element))) chart.close();
    this.charts = this.charts.filter(({ element }) => !this.found.contains(element));
    fill(this.found);
    await this.drawCharts(this.found, matching.slice(0, MAX_FOUND));
  }

  smooth(value) {
    this.smoothing = value;
    localStorage.setItem("smoothing", value);
    for (const chart of this.charts) chart.smooth(Number(value));
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}

// Curves by uPlot in a panel with a title, and a legend that shows the values under the cursor.
/* global uPlot */

import { h, fill, themed } from "./dom.js";
import { number, tick } from "./format.js";

const SYNC = uPlot.sync("step");
const ALL = new Set();
const HEIGHT = 176;

/** One panel. `series`: [{name, label, color, fill}]; `stacked` draws areas on top of one another. */
export class Chart {
  constructor({ title, series, stacked = false, format = number, onstep, tools, range }) {
    Object.assign(this, { title, series, stacked, format, onstep, range, smoothing: 0, data: null });
    this.at = h("span.at.num");
    this.legend = h("div.legend", { class: stacked ? "tight" : "" });
    this.plot = h("div.plot");
    this.element = h("section.panel.chart", { "aria-label": title },
      h("div.title", null, h("h2", { title }, title), this.at, tools), this.legend, this.plot);
    this.values = series.map((item) => h("b"));
    fill(this.legend, series.map((item, index) =>
      h("span", { vars: { "--swatch": `var(${item.color})` } }, h("i"), item.label, this.values[index])));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.plot);
    ALL.add(this);
  }

  /** Show `columns`, one for each series, at the x values `steps`. */
  set(steps, columns) {
    this.raw = [steps, ...columns];
    const data = this.stacked ? stack(this.raw) : this.withSmoothed(this.raw);
    this.data = data;
    if (!this.uplot) this.create();
    else this.uplot.setData(data, !this.isZoomed());
    this.show(null);
  }

  smooth(weight) {
    this.smoothing = weight;
    if (!this.raw || this.stacked) return;
    this.uplot?.destroy();
    this.uplot = null;
    this.set(this.raw[0], this.raw.slice(1));
  }

  close() {
    this.observer.disconnect();
    this.uplot?.destroy();
    ALL.delete(this);
  }

  withSmoothed(data) {
    if (!this.smoothing) return data;
    return [...data, ...data.slice(1).map((column) => smoothed(column, this.smoothing))];
  }

  create() {
    if (!this.plot.clientWidth) return;
    const lines = this.series.map((item) => this.line(item, this.smoothing ? 0.3 : 1));
    const smooth = this.smoothing ? this.series.map((item) => this.line({ ...item, points: false }, 1)) : [];
    const options = {
      width: this.plot.clientWidth, height: HEIGHT, padding: [10, 12, 0, 0],
      legend: { show: false },
      scales: { x: { time: false }, y: this.range ? { range: this.range } : {} },
      cursor: { sync: { key: SYNC.key, setSeries: false }, y: false, points: { size: 5, width: 1.5 }, drag: { x: true, y: false } },
      axes: [axis({ size: 26, space: 60 }), axis({ size: 50, values: (_, ticks) => ticks.map(tick), space: 34 })],
      series: [{}, ...lines, ...smooth],
      bands: this.stacked ? this.series.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : [],
      hooks: { setCursor: [(plot) => this.show(plot.cursor.idx)], ready: [(plot) => this.listen(plot)] },
    };
    this.uplot = new uPlot(options, this.data, this.plot);
  }

  line(item, alpha) {
    const color = () => faded(themed(item.color), alpha);
    const fillColor = () => faded(themed(item.color), this.stacked ? 0.55 : 0.08);
    const isSparse = item.points !== false;
    return {
      stroke: color, width: this.stacked ? 1 : 1.6, spanGaps: true,
      fill: this.stacked || item.fill ? fillColor : undefined,
      points: { show: isSparse && !this.stacked ? sparsePoints : false, size: 5, fill: color, stroke: color },
    };
  }

  listen(plot) {
    let pressed = 0;
    plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    plot.over.addEventListener("click", (event) => {
      if (this.onstep && Math.abs(event.clientX - pressed) < 3 && plot.cursor.idx !== null) this.onstep(this.raw[0][plot.cursor.idx]);
    });
  }

  isZoomed() {
    const x = this.uplot.scales.x, steps = this.uplot.data[0];
    return x.min > steps[0] || x.max < steps[steps.length - 1];
  }

  show(index) {
    const steps = this.raw[0];
    this.at.textContent = index === null || index === undefined ? "" : `step ${steps[index]}`;
    this.series.forEach((_, position) => {
      const column = this.raw[position + 1];
      const value = index === null || index === undefined ? last(column) : near(column, index);
      this.values[position].textContent = this.format(value);
    });
  }

  resize() {
    if (!this.uplot) { if (this.data) this.create(); return; }
    if (this.plot.clientWidth) this.uplot.setSize({ width: this.plot.clientWidth, height: HEIGHT });
  }
}

/** Draw all charts once more, after a change of the theme. */
export function redrawAll() {
  for (const chart of ALL) chart.uplot?.redraw(false);
}

function axis(options) {
  return {
    stroke: () => themed("--faint"), font: `11px ${themed("--font")}`, gap: 4,
    grid: { stroke: () => themed("--line-soft"), width: 1 }, ticks: { show: false }, ...options,
  };
}

function sparsePoints(plot, index) {
  const column = plot.data[index];
  let present = 0;
  for (const value of column) if (value !== null) present += 1;
  return present > 0 && (present < column.length / 3 || present < 3) && present < 60;
}

function faded(color, alpha) {
  if (alpha === 1 || !color.startsWith("#")) return color;
  return color + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

function stack([steps, ...columns]) {
  const sum = steps.map((_, index) => (columns.some((column) => column[index] !== null) ? 0 : null));
  const sums = columns.map((column) => column.map((value, index) => {
    if (sum[index] !== null) sum[index] += value ?? 0;
    return sum[index];
  }));
  return [steps, ...sums];
}

function smoothed(column, weight) {
  let mean = 0, norm = 0;
  return column.map((value) => {
    if (value === null) return null;
    mean = mean * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return mean / norm;
  });
}

function last(column) {
  for (let index = column.length - 1; index >= 0; index -= 1) if (column[index] !== null) return column[index];
  return null;
}

function near(column, index) {
  for (let at = index; at >= 0; at -= 1) if (column[at] !== null) return column[at];
  return null;
}

// Distributions as bars of plain elements.

import { h } from "./dom.js";
import { number, count, tick } from "./format.js";
import { rewardClass } from "./rewards.js";

/** A histogram; with `onpick`, a click on a bar hands over its bounds. */
export function histogram(title, { edges, counts }, { format = number, color, onpick } = {}) {
  const most = Math.max(1, ...counts);
  const bars = counts.map((value, index) => {
    const [low, high] = [edges[index], edges[index + 1]];
    const kind = color === "reward" ? rewardClass((low + high) / 2, [Math.min(0, edges[0]), Math.max(1, edges.at(-1))]) : "plain";
    return h(onpick && value ? "button" : "div", { class: `bin ${kind}`, title: `${format(low)} to ${format(high)}: ${count(value)}`,
      onclick: onpick && value ? () => onpick(low, high) : undefined },
    h("i", { vars: { height: value ? `max(2px, ${100 * value / most}%)` : "0" } }));
  });
  const labels = edges.length ? [edges[0], edges[Math.floor(edges.length / 2)], edges.at(-1)].map((edge) => h("span", null, format === number ? tick(edge) : format(edge))) : [];
  return h("section.panel.histogram", null, h("div.panel-title", null, h("h2", null, title)),
    counts.length ? h("div.bins", null, bars) : h("div.bins.muted", null, "no values"), h("div.bin-labels.num", null, labels));
}

/** Counts by name, the most first; a click on a name hands it over. */
export function barList(title, counts, onpick) {
  const entries = Object.entries(counts).sort(([, a], [, b]) => b - a);
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  return h("section.panel.histogram", null, h("div.panel-title", null, h("h2", null, title)),
    h("div.bar-list", null, entries.slice(0, 6).map(([name, value]) =>
      h("button.bar-row", { type: "button", onclick: () => onpick(name) },
        h("span.bar", { vars: { width: `${100 * value / total}%` } }), h("span.name", null, name.replaceAll("_", " ")), h("span.num", null, count(value))))));
}

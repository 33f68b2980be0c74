// One step: its groups, histograms, and the table of its trajectories; or the trajectories of all steps.

import { h, fill, segments, debounced } from "../dom.js";
import { fixed, seconds, count } from "../format.js";
import { get, ofRun } from "../server.js";
import { Table } from "../table.js";
import { bounds, square } from "../rewards.js";
import { histogram, barList } from "../histogram.js";

export const tab = "step";
const ALL = "all";
const KINDS = { step: "Rollout", validation: "Validation", all: "All steps" };
const NO_FILTERS = { text: "", termination: "", fate: "", min_reward: "", max_reward: "", failed_calls: false, failure_class: "", failure_cause: "" };
const kept = new Map();

/** Show what the filters keep in the table of all steps when it is opened next. */
export function keepFilters(run, filters) {
  kept.set(run, { filters: { ...NO_FILTERS, ...filters }, sort: "newest", descending: true, isAll: true });
}

export async function show(root, context) {
  const page = new Step(root, context);
  await page.load();
  return page;
}

class Step {
  constructor(root, context) {
    Object.assign(this, { root, context, run: context.run });
    this.filters = kept.get(this.run)?.filters ?? { ...NO_FILTERS };
  }

  async load() {
    const { files } = await get(ofRun(this.run, "steps"));
    this.files = files;
    this.isEmpty = !files.length;
    if (this.isEmpty) {
      fill(this.root, h("div.empty", null, "No trajectory is recorded yet. A step appears here once it is rolled out."));
      return;
    }
    const [wanted] = this.context.parts;
    const rollouts = files.filter((file) => file.startsWith("step"));
    this.file = wanted === ALL ? ALL : files.includes(wanted) ? wanted : rollouts.at(-1) ?? files.at(-1);
    const order = this.file === ALL ? { sort: "newest", descending: true } : { sort: "prompt_id", descending: false };
    const before = kept.get(this.run);
    Object.assign(this, order, before?.isAll === (this.file === ALL) && { sort: before.sort, descending: before.descending });
    this.facts = h("div.facts.num");
    this.charts = h("div.distributions");
    this.groups = h("section.panel.groups");
    this.numFound = h("span.muted.num");
    this.table = new Table({
      columns: this.columns(), sort: this.sort, descending: this.descending,
      load: (order) => this.page(order),
      onopen: (row) => this.context.go(this.run, "trajectory", row.file, row.offset),
    });
    fill(this.root, this.navigation(), this.file !== ALL && [this.charts, this.groups], this.filterLine(), h("div.panel", null, this.table.element));
    await Promise.all([this.loadSummary(), this.reload(before?.row)]);
    this.keepScroll = before?.file === this.file;
    this.scroll = before?.scroll;
  }

  ready() {
    if (this.keepScroll) scrollTo(0, this.scroll);
  }

  navigation() {
    const kind = this.file === ALL ? ALL : this.file.split("_")[0];
    const same = this.files.filter((file) => file.startsWith(kind));
    const at = same.indexOf(this.file);
    const to = (file) => file && this.context.go(this.run, "step", file);
    const toKind = (name) => to(name === ALL ? ALL : this.nearest(name));
    const field = h("input.field.num", { type: "number", value: Number(this.file.split("_")[1]), "aria-label": "step",
      onchange: (event) => to(this.nearest(kind, Number(event.target.value))) });
    this.keys = { h: () => to(same[at - 1]), l: () => to(same[at + 1]) };
    const kinds = Object.fromEntries(Object.entries(KINDS).filter(([name]) => name === ALL || this.files.some((file) => file.startsWith(name))));
    return h("div.head", null, segments(kinds, kind, toKind, "kind of step"),
      kind !== ALL && h("div.stepper", null,
        h("button.button.icon", { type: "button", title: "Previous step (h)", disabled: at <= 0, onclick: this.keys.h }, "‹"),
        field,
        h("button.button.icon", { type: "button", title: "Next step (l)", disabled: at >= same.length - 1, onclick: this.keys.l }, "›")),
      this.facts);
  }

  /** The file of a kind whose step is nearest. */
  nearest(kind, step = Number(this.file.split("_")[1] ?? 1e9)) {
    let best;
    for (const file of this.files) {
      if (!file.startsWith(kind)) continue;
      const distance = Math.abs(Number(file.split("_")[1]) - step);
      if (!best || distance < best[0]) best = [distance, file];
    }
    return best?.[1];
  }

  async loadSummary() {
    if (this.file === ALL) return;
    const found = await get(ofRun(this.run, "summary"), { file: this.file });
    this.summary = found;
    const fact = (value, label, kind = "") => h("span", null, h("b", { class: kind }, value), ` ${label}`);
    fill(this.facts,
      fact(count(found.num_trajectories), "trajectories"), fact(count(found.num_groups), "groups"),
      fact(fixed(found.reward_mean, 3), "mean reward"), fact(count(found.num_calls), "calls"),
      fact(count(found.num_failed_calls), "failed", found.num_failed_calls ? "bad" : ""),
      found.num_without_reward ? fact(count(found.num_without_reward), "without reward", "bad") : null);
    const { histograms } = found;
    fill(this.charts,
      histogram("Reward", histograms.reward, { color: "reward", onpick: (low, high) => this.set({ min_reward: low, max_reward: high }) }),
      histogram("Response tokens", histograms["response tokens"]), histogram("Time", histograms.seconds, { format: seconds }),
      barList("Ended by", found.terminations, (name) => this.set({ termination: name })),
      Object.keys(found.fates).length > 0 && barList("Use in the update", found.fates, (name) => this.set({ fate: name })));
    this.drawGroups();
  }

  drawGroups() {
    const { groups } = this.summary;
    const range = bounds(groups.flatMap((group) => group.rewards.map(([, reward]) => reward)));
    const mean = ({ rewards }) => {
      const present = rewards.map(([, reward]) => reward).filter((reward) => reward !== null);
      return present.length ? present.reduce((sum, reward) => sum + reward, 0) / present.length : null;
    };
    const sorted = groups.map((group) => [mean(group), group]).sort(([a], [b]) => (a ?? -Infinity) - (b ?? -Infinity));
    fill(this.groups, h("div.panel-title", null, h("h2", null, "Groups"),
      h("span.muted", null, "each square is a trajectory; lowest mean reward first")),
    h("div.group-list", null, sorted.map(([value, group]) => h("div.group", null,
      h("a.prompt", { href: this.context.address(this.run, "group", this.file, group.prompt_id), title: `${group.prompt_id}: side by side` }, group.prompt_id),
      h("span.num.muted", null, fixed(value, 2)),
      h("span.squares", null, group.rewards.map(([offset, reward]) =>
        square(reward, range, { tag: "a", href: this.context.address(this.run, "trajectory", this.file, offset) })))))));
  }

  columns() {
    const text = (name, label) => ({ name, label, isText: true, cell: (row) => h("span.id", { title: row[name] }, row[name]) });
    const plain = (name, label, format = count, title) => ({ name, label, title, cell: (row) => format(row[name]) });
    return [
      ...(this.file === ALL ? [plain("step", "Step", (value) => value)] : []),
      text("prompt_id", "Prompt"), plain("sample_index", "Sample"),
      { name: "reward", label: "Reward", cell: (row) => [fixed(row.reward, 3), " ", square(row.reward, [0, 1])] },
      { name: "termination", label: "Ended by", isText: true, cell: (row) => this.ending(row) },
      { name: "fate", label: "Use", isText: true, title: "use in the update", cell: (row) => h("span", { class: row.fate === "trained" ? "faint" : "muted" }, row.fate?.replaceAll("_", " ") ?? "") },
      plain("num_turns", "Turns"), plain("num_tool_calls", "Calls"),
      { name: "num_failed_tool_calls", label: "Failed", cell: (row) => h("span", { class: row.num_failed_tool_calls ? "bad" : "faint" }, count(row.num_failed_tool_calls)) },
      plain("num_response_tokens", "Sampled", count, "sampled tokens"), plain("num_tokens", "Tokens", count, "prompt and observations too"),
      plain("wall_time_s", "Time", seconds), plain("generate_s", "Sampling", seconds), plain("tool_s", "Tools", seconds),
      plain("policy_version", "Policy", count, "oldest version that sampled"),
    ];
  }

  ending(row) {
    const kind = { answered: "faint", infra_error: "bad", data_error: "bad" }[row.termination] ?? "warn";
    return [h(`span.${kind}`, { title: row.failure_cause }, row.termination.replaceAll("_", " ")), row.is_masked ? h("span.faint", null, " · masked") : null];
  }

  filterLine() {
    const field = (name, properties) => h("input.field", { value: this.filters[name], ...properties,
      oninput: debounced(150, (event) => this.set({ [name]: event.target.value }, false)) });
    this.fields = {
      text: field("text", { type: "search", placeholder: "Prompt or trajectory id", size: 24, "data-filter": true }),
      min_reward: field("min_reward", { type: "number", step: "any", placeholder: "min", "aria-label": "lowest reward" }),
      max_reward: field("max_reward", { type: "number", step: "any", placeholder: "max", "aria-label": "highest reward" }),
    };
    this.termination = h("select.field", { "aria-label": "ended by", onchange: (event) => this.set({ termination: event.target.value }) });
    this.failed = h("button.button", { type: "button", onclick: () => this.set({ failed_calls: !this.filters.failed_calls }) }, "Failed calls");
    this.failure = h("span.pill.bad");
    this.fate = h("span.pill.accent");
    this.reset = h("button.button", { type: "button", onclick: () => this.set(NO_FILTERS) }, "Reset");
    return h("div.head.filters", null, h("h1", null, "Trajectories"), this.numFound, this.failure, this.fate, h("div.grow"), this.fields.text,
      h("span.range", null, h("span.muted", null, "Reward"), this.fields.min_reward, "–", this.fields.max_reward), this.termination, this.failed, this.reset);
  }

  drawFilters() {
    const { filters } = this;
    for (const [name, field] of Object.entries(this.fields)) if (document.activeElement !== field) field.value = filters[name];
    const names = ["answered", "max_turns", "max_response_tokens", "timeout", "infra_error", "data_error"];
    fill(this.termination, h("option", { value: "" }, "Ended by any"), names.map((name) => h("option", { value: name }, name.replaceAll("_", " "))));
    this.termination.value = filters.termination;
    this.failed.setAttribute("aria-pressed", String(filters.failed_calls));
    this.fate.hidden = !filters.fate;
    this.fate.textContent = filters.fate.replaceAll("_", " ");
    this.failure.hidden = !filters.failure_class;
    this.failure.textContent = `${filters.failure_class}: ${filters.failure_cause}`.slice(0, 60);
    this.reset.disabled = Object.entries(NO_FILTERS).every(([name, value]) => filters[name] === value);
  }

  set(change, isWhole = true) {
    const format = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : value);
    for (const [name, value] of Object.entries(change)) this.filters = { ...this.filters, [name]: format(value) };
    if (isWhole) document.activeElement?.blur?.();
    return this.reload();
  }

  async reload(selected) {
    this.drawFilters();
    const page = await this.table.reload(selected);
    this.numFound.textContent = `${count(page.count)}${this.summary && page.count !== this.summary.num_trajectories ? ` of ${count(this.summary.num_trajectories)}` : ""}`;
    Object.assign(this.keys, this.table.keys);
  }

  page(order) {
    const { sort, descending } = this.table ?? order;
    kept.set(this.run, { filters: this.filters, sort, descending, isAll: this.file === ALL });
    const failed = this.filters.failed_calls ? { failed_calls: true } : {};
    const filters = { ...this.filters, failed_calls: "", ...failed };
    return get(ofRun(this.run, "trajectories"), { file: this.file === ALL ? "" : this.file, ...filters, ...order });
  }

  up() {
    this.context.go(this.run, "overview");
  }

  async onNews(state, before) {
    if (state.num_trajectories === before?.num_trajectories) return;
    const { files } = await get(ofRun(this.run, "steps"));
    if (this.isEmpty) { await this.load(); return; }
    const isSame = files.length === this.files.length;
    this.files = files;
    if (!isSame) {
      this.root.firstChild.replaceWith(this.navigation());
      Object.assign(this.keys, this.table.keys);
    }
    const count = this.summary?.num_trajectories;
    await this.loadSummary();
    if (this.summary && count === this.summary.num_trajectories) return;
    if (this.table.numPages <= 1) await this.reload();
  }

  close() {
    if (!this.table) return;
    this.table.close();
    const { row } = this.table.rows[this.table.selected] ?? {};
    const left = kept.get(this.run);
    if (left && left.isAll === (this.file === ALL)) kept.set(this.run, { ...left, file: this.file, row, scroll: scrollY });
  }
}

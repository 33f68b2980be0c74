// A trajectory: its times on one axis, its conversation or its tokens, and the facts beside them.

import { h, fill, segments } from "../dom.js";
import { number, fixed, seconds, count, stepName } from "../format.js";
import { get, ofRun } from "../server.js";
import { bounds, square } from "../rewards.js";
import { timeline, timeSplit } from "../timeline.js";
import { conversation } from "../conversation.js";
import { TokenView } from "../tokens.js";

export const tab = "step";

export async function show(root, context) {
  const page = new TrajectoryPage(root, context);
  await page.load();
  return page;
}

class TrajectoryPage {
  constructor(root, context) {
    Object.assign(this, { root, context, run: context.run });
    [this.file, this.offset, this.part = "conversation"] = context.parts;
  }

  async load() {
    const found = await get(ofRun(this.run, "trajectory"), { file: this.file, offset: this.offset });
    Object.assign(this, found);
    this.body = h("div.reading");
    fill(this.root, this.header(), h("div.two-columns", null, h("div", null, timeline(this.record, (index) => this.jump(index)), this.body), this.side()));
    await this.drawPart();
  }

  header() {
    const { place } = this;
    const to = (offset) => offset !== null && offset !== undefined && this.context.go(this.run, "trajectory", this.file, offset, ...(this.part === "tokens" ? ["tokens"] : []));
    this.keys = { h: () => to(place.before), l: () => to(place.after), c: () => this.choose("conversation"), x: () => this.choose("tokens"), n: () => this.tokens?.nextUnlikely() };
    this.parts = segments({ conversation: "Conversation", tokens: "Tokens" }, this.part, (part) => this.choose(part), "part");
    return h("div.head", null,
      h("a.crumb", { href: this.context.address(this.run, "step", this.file) }, stepName(this.file)), h("span.faint", null, "/"),
      h("a.crumb.mono", { href: this.context.address(this.run, "group", this.file, place.prompt_id), title: "its group side by side" }, place.prompt_id), h("span.faint", null, "/"),
      h("h1.mono", null, `sample ${place.sample_index}`), this.outcome(), h("div.grow"), this.parts,
      h("div.stepper", null,
        h("button.button.icon", { type: "button", title: "Previous trajectory (h)", disabled: place.before === null, onclick: this.keys.h }, "‹"),
        h("button.button.icon", { type: "button", title: "Next trajectory (l)", disabled: place.after === null, onclick: this.keys.l }, "›")));
  }

  outcome() {
    const { record } = this;
    const kind = record.termination === "answered" ? "" : record.termination.endsWith("error") ? "bad" : "warn";
    return [h("span.pill", { class: record.reward === null ? "bad" : record.reward > 0 ? "good" : "" }, record.reward === null ? "no reward" : `reward ${number(record.reward)}`),
      h("span.pill", { class: kind }, record.termination.replaceAll("_", " ")), record.is_masked && h("span.pill.warn", null, "masked")];
  }

  choose(part) {
    if (part === this.part) return;
    this.part = part;
    for (const button of this.parts.children) button.setAttribute("aria-pressed", String(button.dataset.value === part));
    history.replaceState(null, "", this.context.address(this.run, "trajectory", this.file, this.offset, ...(part === "tokens" ? ["tokens"] : [])));
    this.drawPart();
  }

  async drawPart() {
    this.tokens?.close();
    this.tokens = null;
    if (this.part === "conversation") {
      fill(this.body, conversation(this.record, this.prompt));
      return;
    }
    const data = await get(ofRun(this.run, "tokens"), { file: this.file, offset: this.offset });
    if (this.part !== "tokens") return;
    this.tokens = new TokenView(data);
    fill(this.body, this.tokens.element);
    this.tokens.ready();
  }

  ready() {
    this.tokens?.ready();
  }

  onTheme() {
    this.tokens?.drawMap();
  }

  async jump(index) {
    this.choose("conversation");
    const target = this.body.querySelector(`[data-turn="${index}"]`);
    target?.scrollIntoView({ block: "start", behavior: "smooth" });
  }

  side() {
    const { record, place, prompt } = this;
    const fact = (label, value, kind = "") => [h("dt", null, label), h("dd.num", { class: kind }, value)];
    const range = bounds(this.group.map(([, reward]) => reward));
    const rewards = this.group.map(([, reward]) => reward).filter((reward) => reward !== null);
    const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
    return h("aside", null,
      h("section.panel.facts-panel", null,
        h("h2", null, "Group ", rewards.length > 1 && h("span.muted.num", null, `mean ${fixed(mean, 3)}`)),
        h("div.squares.large", null, this.group.map(([offset, reward]) =>
          square(reward, range, { tag: "a", href: this.context.address(this.run, "trajectory", this.file, offset), "aria-current": String(offset) === this.offset && "true" }))),
        h("a.link", { href: this.context.address(this.run, "group", this.file, place.prompt_id) }, "Side by side →")),
      h("section.panel.facts-panel", null, h("h2", null, "Reward"),
        h("dl.facts-list", null, fact("reward", record.reward === null ? "none" : number(record.reward)),
          record.reward !== null && rewards.length > 1 && fact("minus the group's mean", signed(record.reward - mean), record.reward > mean ? "good" : record.reward < mean ? "bad" : ""),
          place.fate && fact("use in the update", place.fate.replaceAll("_", " "), place.fate === "trained" ? "" : "warn"),
          Object.entries(record.reward_metrics).map(([name, value]) => fact(name, number(value))),
          prompt && prompt.answer !== null && fact("reference answer", h("span.mono.answer", null, typeof prompt.answer === "string" ? prompt.answer : JSON.stringify(prompt.answer))))),
      h("section.panel.facts-panel", null, h("h2", null, "Time"), timeSplit(record.times), h("dl.facts-list", null, fact("wall time", seconds(record.wall_time_s)), record.num_retries > 0 && fact("retries", count(record.num_retries), "bad"))),
      h("section.panel.facts-panel", null, h("h2", null, "Size"), h("dl.facts-list", null, fact("tokens", count(place.num_tokens)), fact("of the prompt", count(record.num_prompt_tokens)),
        fact("sampled", count(place.num_response_tokens)), fact("turns", count(place.num_turns)), fact("calls", count(place.num_tool_calls)),
        fact("failed calls", count(place.num_failed_tool_calls), place.num_failed_tool_calls ? "bad" : ""), fact("policy version", versions(record.version_spans)),
        prompt?.data_set && fact("data set", prompt.data_set), fact("id", h("span.mono", null, record.trajectory_id)))));
  }

  up() {
    this.context.go(this.run, "step", this.file);
  }

  close() {
    this.tokens?.close();
  }
}

function signed(value) {
  return `${value > 0 ? "+" : ""}${number(value)}`;
}

function versions(spans) {
  const all = spans.map(([, version]) => version);
  if (!all.length) return "–";
  const low = Math.min(...all), high = Math.max(...all);
  return low === high ? count(low) : `${low} to ${high}`;
}

// The trajectories of a prompt side by side, with the first token marked in which each differs from the chosen one.

import { h, fill } from "../dom.js";
import { count, fixed, plural, seconds, stepName } from "../format.js";
import { get, ofRun } from "../server.js";
import { bounds, square } from "../rewards.js";

export const tab = "step";

export async function show(root, context) {
  const page = new GroupPage(root, context);
  await page.load();
  return page;
}

class GroupPage {
  constructor(root, context) {
    Object.assign(this, { root, context, run: context.run, selected: -1 });
    [this.file, this.prompt] = context.parts;
    this.keys = { l: () => this.select(this.selected + 1), h: () => this.select(this.selected - 1), Enter: () => this.openSelected(),
      b: () => this.selected >= 0 && this.compareWith(this.selected) };
  }

  async load() {
    const [{ members, has_text: hasText }, { steps }] = await Promise.all([
      get(ofRun(this.run, "group"), { file: this.file, prompt_id: this.prompt }), get(ofRun(this.run, "history"), { prompt_id: this.prompt })]);
    this.members = members;
    this.base = 0;
    if (!members.length) {
      fill(this.root, h("div.empty", null, `${stepName(this.file)} has no trajectory of this prompt.`));
      return;
    }
    const rewards = members.map(({ place }) => place.reward);
    this.range = bounds(rewards);
    const present = rewards.filter((reward) => reward !== null);
    const mean = present.length ? present.reduce((sum, reward) => sum + reward, 0) / present.length : null;
    this.columns = h("div.columns");
    fill(this.root, h("div.head", null,
      h("a.crumb", { href: this.context.address(this.run, "step", this.file) }, stepName(this.file)), h("span.faint", null, "/"), h("h1.mono", null, this.prompt),
      h("span.muted.num", null, `${plural(members.length, "trajectory").replace(/ys$/, "ies")}, mean reward ${fixed(mean, 3)}`), this.branching(), h("div.grow"),
      !hasText && h("span.pill.warn", null, "ids: no tokenizer here"), h("span.muted", null, "click a column's head to compare with it")), steps.length > 1 && this.history(steps), this.columns);
    this.draw();
  }

  /** The same prompt in other steps. */
  history(steps) {
    const range = bounds(steps.flatMap(({ rewards }) => rewards.map(([, reward]) => reward)));
    return h("section.panel.history", { "aria-label": "the prompt in other steps" }, steps.map(({ file, prompt_id, rewards }) =>
      h("a.history-step", { href: this.context.address(this.run, "group", file, prompt_id), "aria-current": file === this.file && "true" },
        h("span.muted.num", null, stepName(file)), h("span.squares", null, rewards.map(([, reward]) => square(reward, range))))));
  }

  /** Number of tokens that all members share. */
  branching() {
    const shared = this.members.reduce((length, member) => Math.min(length, difference(member, this.members[0]) ?? member.token_ids.length), Infinity);
    return this.members.length > 1 && h("span.pill.accent.num", null, `all share ${plural(shared, "token")}`);
  }

  draw() {
    const base = this.members[this.base];
    fill(this.columns, this.members.map((member, index) => this.column(member, index, base)));
    this.select(this.selected, false);
  }

  column(member, index, base) {
    const { place } = member;
    const at = index === this.base ? null : difference(member, base);
    const isBase = index === this.base;
    return h("section.panel.column", { class: isBase ? "base" : "" },
      h("button.column-head", { type: "button", title: "Compare with this trajectory", onclick: () => this.compareWith(index) },
        square(place.reward, this.range), h("b.num", null, fixed(place.reward, 3)), h("span.muted", null, `sample ${place.sample_index}`),
        h("span.grow"), h("span.faint.num", null, `${count(place.num_response_tokens)} tok · ${seconds(place.wall_time_s)}`)),
      h("div.column-note", null, isBase ? h("span.accent-text", null, "compared with") : at === null ? "the same tokens" : `differs at token ${count(at + 1)}`,
        h("a.link", { href: this.context.address(this.run, "trajectory", this.file, place.offset) }, "open")),
      h("div.column-text", null, pieces(member, at ?? (isBase ? null : member.token_ids.length)),
        member.num_left_out > 0 && h("p.muted", null, `${plural(member.num_left_out, "more token")}`)));
  }

  compareWith(index) {
    this.base = index;
    this.draw();
  }

  select(index, scroll = true) {
    if (index < 0 || index >= this.members.length) return;
    this.selected = index;
    [...this.columns.children].forEach((column, at) => column.classList.toggle("selected", at === index));
    if (scroll) this.columns.children[index].scrollIntoView({ inline: "nearest", block: "nearest" });
  }

  openSelected() {
    const member = this.members[Math.max(0, this.selected)];
    this.context.go(this.run, "trajectory", this.file, member.place.offset);
  }

  up() {
    this.context.go(this.run, "step", this.file);
  }
}

/** Index of the first token that differs; null if none does. */
function difference(member, base) {
  const length = Math.max(member.token_ids.length, base.token_ids.length);
  for (let index = 0; index < length; index += 1) if (member.token_ids[index] !== base.token_ids[index]) return index;
  return null;
}

/** Runs of shared, first differing, sampled and observed tokens. */
function pieces(member, at) {
  const runs = [];
  member.texts.forEach((text, index) => {
    const kind = index === at ? "first" : at !== null && index < at ? "shared" : member.mask[index] ? "own" : "observed";
    if (kind !== "first" && runs.at(-1)?.kind === kind) runs.at(-1).texts.push(text);
    else runs.push({ kind, texts: [text] });
  });
  return runs.map(({ kind, texts }) => h(`span.${kind}`, null, texts.join("") || (kind === "first" ? "·" : "")));
}

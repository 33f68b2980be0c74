// Search by a regular expression in all texts of a run, the newest step first.

import { h, fill } from "../dom.js";
import { count, plural, stepName } from "../format.js";
import { stream, ofRun } from "../server.js";
import { square } from "../rewards.js";

export const tab = "search";

export async function show(root, context) {
  const page = new SearchPage(root, context);
  page.draw();
  return page;
}

class SearchPage {
  constructor(root, context) {
    Object.assign(this, { root, context, run: context.run, pattern: context.parts[0] ?? "", selected: -1 });
    this.keys = { j: () => this.select(this.selected + 1), k: () => this.select(this.selected - 1), Enter: () => this.hits.children[this.selected]?.click() };
  }

  draw() {
    this.field = h("input.field.mono.wide", { type: "search", placeholder: "Regular expression, such as  SyntaxError|(?i)cannot", value: this.pattern, "data-filter": true, "aria-label": "pattern",
      spellcheck: "false", autocomplete: "off" });
    this.state = h("span.muted.num");
    this.hits = h("div.hits");
    this.note = h("div.empty", null, "Prompts, turns, calls, results and failures are searched, the newest step first. One hit is shown for each trajectory.");
    fill(this.root, h("form.head", { onsubmit: (event) => { event.preventDefault(); this.submit(); } }, h("h1", null, "Search"), this.field,
      h("button.button", { type: "submit" }, "Search"), this.state), this.note, h("div.panel", { hidden: true }, this.hits));
    if (this.pattern) this.search();
  }

  ready() {
    if (!this.pattern) this.field.focus();
  }

  submit() {
    this.pattern = this.field.value;
    history.replaceState(null, "", this.context.address(this.run, "search", ...(this.pattern ? [this.pattern] : [])));
    if (this.pattern) this.search();
  }

  async search() {
    this.stop?.abort();
    const stop = new AbortController();
    this.stop = stop;
    fill(this.hits);
    this.selected = -1;
    this.num = 0;
    this.note.hidden = true;
    this.hits.parentElement.hidden = true;
    this.state.textContent = "searching …";
    try {
      await stream(ofRun(this.run, "search"), { pattern: this.pattern }, (item) => this.take(item), stop.signal);
    } catch (error) {
      if (error.name !== "AbortError") this.say(error.message);
    }
  }

  take(item) {
    if (item.error) { this.say(item.error); return; }
    if (item.match !== undefined) {
      this.num += 1;
      this.hits.parentElement.hidden = false;
      this.hits.append(this.hit(item));
      return;
    }
    const found = plural(this.num, "hit"), read = item.read ? ` in ${count(item.read)} records` : "";
    if (item.timed_out_s) this.state.textContent = `${found}; stopped after ${item.timed_out_s} s`;
    else if (item.is_full) this.state.textContent = `the newest ${found}; older ones are left out`;
    else this.state.textContent = item.done ? `${found}${read}` : `${found}${read}, back to ${stepName(item.last)} …`;
    if (item.done && !this.num) this.say(item.timed_out_s ? "Nothing found in that time; a simpler pattern is faster." : "Nothing matches.");
  }

  say(text) {
    if (text.startsWith("pattern") || text.startsWith("scan")) this.state.textContent = "";
    this.note.hidden = false;
    this.note.textContent = text;
  }

  hit(item) {
    const href = item.offset === null ? this.context.address(this.run, "group", item.file, item.prompt_id) : this.context.address(this.run, "trajectory", item.file, item.offset);
    return h("a.hit", { href },
      h("span.where", null, item.offset === null ? h("i.square") : square(item.reward, [0, 1]), h("span", null, stepName(item.file)), h("span.mono.muted", null, item.prompt_id),
        item.sample_index !== null && h("span.faint.num", null, `sample ${item.sample_index}`), h("span.faint", null, item.part)),
      h("code", null, ...[item.before, h("mark", null, inLine(item.match)), item.after].map((part) => (typeof part === "string" ? inLine(part) : part))));
  }

  select(index) {
    const rows = this.hits.children;
    if (index < 0 || index >= rows.length) return;
    rows[this.selected]?.classList.remove("selected");
    this.selected = index;
    rows[index].classList.add("selected");
    rows[index].scrollIntoView({ block: "nearest" });
  }

  up() {
    this.context.go(this.run, "overview");
  }

  close() {
    this.stop?.abort();
  }
}

/** Text in one line, with a sign for each line end. */
function inLine(text) {
  return text.replace(/\s*\n\s*/g, " ↵ ");
}

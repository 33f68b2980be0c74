// The tokens of a trajectory. All text is there at once, in chunks that the browser lays out when they come near; a chunk gets an
// element per token when it is near the screen. Colours are classes and one attribute, so a change of them is one change of style.

import { h, fill, segments, themed } from "./dom.js";
import { count } from "./format.js";

const CHUNK = 400;
const MAX_CHUNK = 800;
const BOUNDS = [0.02, 0.1, 0.25, 0.5, 1, 2, 3.5, 5.5, 8];
const COLOURS = { logprob: "Log-probability", mask: "Sampled", version: "Policy version" };
const MAP_WIDTH = 64;
const MAP_COLUMNS = 16;

export class TokenView {
  constructor(data) {
    this.data = data;
    this.by = sessionStorage.getItem("tokens-by") ?? "logprob";
    this.levels = data.logprobs.map((value, index) => (data.mask[index] && value !== null ? level(-value) : -1));
    this.versions = versionsOf(data);
    this.text = h("div.tokens", { "data-by": this.by, tabindex: "0" });
    this.about = h("div.token-facts.num");
    this.legend = h("div.token-legend");
    this.map = h("canvas.token-map", { title: "All tokens; click to go there", onclick: (event) => this.goTo(event) });
    this.element = h("section.panel.token-panel", null,
      h("div.token-bar", null, segments(COLOURS, this.by, (by) => this.colour(by), "colour"), this.legend, h("div.grow"),
        h("button.button", { type: "button", title: "Next token below 10% (n)", onclick: () => this.nextUnlikely() }, "Next unlikely")),
      this.about, !data.has_text && h("div.token-note.warn", null, "No tokenizer of this model can be read here, so ids are shown."),
      h("div.token-body", null, this.text, this.map));
    this.text.addEventListener("mouseover", (event) => this.point(event.target));
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) this.draw(this.chunks[Number(entry.target.dataset.chunk)]);
    }, { rootMargin: "800px" });
    this.build();
    this.drawLegend();
    this.show(null);
  }

  build() {
    const { texts, index_of_text: of } = this.data;
    this.chunks = [];
    const fragment = document.createDocumentFragment();
    let start = 0;
    while (start < of.length) {
      let end = Math.min(of.length, start + CHUNK);
      while (end < of.length && end - start < MAX_CHUNK && !texts[of[end - 1]].endsWith("\n")) end += 1;
      const parts = [];
      for (let index = start; index < end; index += 1) parts.push(texts[of[index]]);
      const text = parts.join("");
      const element = h("div.chunk", { "data-chunk": this.chunks.length, vars: { "contain-intrinsic-size": `auto ${estimatedHeight(text)}px` } }, text);
      this.chunks.push({ start, end, element, isDrawn: false });
      fragment.append(element);
      start = end;
    }
    this.text.append(fragment);
  }

  /** Called once the element is in the page. */
  ready() {
    if (!this.text.isConnected || this.isReady) return;
    this.isReady = true;
    for (const { element } of this.chunks) this.observer.observe(element);
    this.drawMap();
  }

  draw(chunk) {
    if (chunk.isDrawn) return;
    chunk.isDrawn = true;
    this.observer.unobserve(chunk.element);
    const { texts, index_of_text: of, mask } = this.data;
    const fragment = document.createDocumentFragment();
    for (let index = chunk.start; index < chunk.end; index += 1) {
      const token = document.createElement("span");
      token.className = mask[index] ? `s p${this.levels[index]} v${this.versions[index]}` : "u";
      token.textContent = texts[of[index]];
      fragment.append(token);
    }
    chunk.element.replaceChildren(fragment);
  }

  colour(by) {
    this.by = by;
    sessionStorage.setItem("tokens-by", by);
    this.text.dataset.by = by;
    this.drawLegend();
    this.drawMap();
  }

  drawLegend() {
    const swatch = (kind, label) => h("span", null, h("i", { class: kind }), label);
    const legends = {
      logprob: [h("span", null, "certain"), h("span.scale", null, BOUNDS.map((_, index) => h("i", { class: `p${index}` })), h("i.p9")), h("span", null, "unlikely")],
      mask: [swatch("s", "sampled by the policy"), swatch("u", "prompt and observations")],
      version: [...new Set(this.data.version_spans.map(([, version]) => version))].slice(0, 6).map((version) => swatch(`v${this.versionClass(version)}`, `version ${version}`)),
    };
    fill(this.legend, legends[this.by]);
    this.legend.dataset.by = this.by;
  }

  versionClass(version) {
    return (version - Math.min(...this.data.version_spans.map(([, item]) => item))) % 6;
  }

  point(target) {
    if (target.tagName !== "SPAN" || !target.parentElement.dataset.chunk) return;
    const chunk = this.chunks[Number(target.parentElement.dataset.chunk)];
    this.show(chunk.start + [...target.parentElement.children].indexOf(target));
  }

  show(index) {
    const { data } = this;
    const fact = (label, value) => [h("span", null, label, " ", h("b", null, value))];
    if (index === null) {
      const sampled = data.mask.reduce((sum, value) => sum + value, 0);
      fill(this.about, fact("tokens", count(data.token_ids.length)), fact("prompt", count(data.num_prompt_tokens)), fact("sampled", count(sampled)), h("span.faint", null, "point at a token"));
      return;
    }
    const logprob = data.logprobs[index];
    fill(this.about, fact("token", count(index)), fact("id", data.token_ids[index]), h("span", null, h("b.mono", null, JSON.stringify(data.texts[data.index_of_text[index]]))),
      logprob === null ? h("span.faint", null, index < data.num_prompt_tokens ? "prompt" : "observation")
        : [fact("log-probability", logprob.toFixed(3)), fact("probability", `${(100 * Math.exp(logprob)).toFixed(1)}%`), fact("version", this.versionAt(index))]);
  }

  versionAt(index) {
    let found = "–";
    for (const [start, version] of this.data.version_spans) if (start <= index) found = version;
    return found;
  }

  nextUnlikely() {
    const from = this.marked ?? -1;
    let index = this.data.logprobs.findIndex((value, at) => at > from && value !== null && value < -2.3);
    if (index < 0) index = this.data.logprobs.findIndex((value) => value !== null && value < -2.3);
    if (index >= 0) this.reveal(index);
  }

  reveal(index) {
    const chunk = this.chunks.find(({ end }) => index < end);
    this.draw(chunk);
    this.text.querySelector(".marked")?.classList.remove("marked");
    const token = chunk.element.children[index - chunk.start];
    token.classList.add("marked");
    token.scrollIntoView({ block: "center" });
    this.marked = index;
    this.show(index);
  }

  drawMap() {
    const { mask } = this.data, height = Math.max(1, this.map.clientHeight), scale = devicePixelRatio;
    const rows = Math.max(1, Math.min(Math.floor(height / 2), Math.ceil(mask.length / MAP_COLUMNS)));
    const cells = rows * MAP_COLUMNS, tokensPerCell = Math.max(1, mask.length / cells);
    const rowHeight = Math.min(6, height / rows), cellWidth = MAP_WIDTH / MAP_COLUMNS;
    this.map.width = MAP_WIDTH * scale;
    this.map.height = height * scale;
    const context = this.map.getContext("2d");
    context.scale(scale, scale);
    const colours = this.mapColours();
    for (let cell = 0; cell < cells; cell += 1) {
      const start = Math.floor(cell * tokensPerCell), end = Math.min(mask.length, Math.max(start + 1, Math.floor((cell + 1) * tokensPerCell)));
      let best = -1, at = -1;
      for (let index = start; index < end; index += 1) if (mask[index] && this.levels[index] > best) { best = this.levels[index]; at = index; }
      if (start >= mask.length) break;
      context.fillStyle = at < 0 ? colours.none : this.by === "logprob" ? colours.levels[best] : this.by === "mask" ? colours.sampled : colours.versions[this.versions[at]];
      context.fillRect((cell % MAP_COLUMNS) * cellWidth, Math.floor(cell / MAP_COLUMNS) * rowHeight, cellWidth - 0.5, Math.max(1, rowHeight - 0.5));
    }
    this.mapHeight = rows * rowHeight;
  }

  mapColours() {
    const levels = [...Array(10).keys()].map((value) => themed(`--p${value}`));
    return { none: themed("--line"), sampled: themed("--c3"), levels, versions: ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"].map(themed) };
  }

  goTo(event) {
    const share = Math.max(0, Math.min(1, event.offsetY / this.mapHeight));
    this.reveal(Math.min(this.data.mask.length - 1, Math.floor(share * this.data.mask.length)));
  }

  close() {
    this.observer.disconnect();
  }
}

function level(surprise) {
  let index = 0;
  while (index < BOUNDS.length && surprise >= BOUNDS[index]) index += 1;
  return index;
}

/** Colour number of each token's policy version. */
function versionsOf(data) {
  const colours = new Uint8Array(data.mask.length);
  const low = Math.min(...data.version_spans.map(([, version]) => version));
  data.version_spans.forEach(([start, version], index) => colours.fill((version - low) % 6, start, data.version_spans[index + 1]?.[0]));
  return colours;
}

function estimatedHeight(text) {
  let lines = 0;
  for (const line of text.split("\n")) lines += Math.max(1, Math.ceil(line.length / 105));
  return lines * 22;
}

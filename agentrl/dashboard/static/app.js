// The frame around the views: the bar, addresses (#/RUN/view/...), keys, theme, and news from the server.

import { h, fill } from "./dom.js";
import { get, follow } from "./server.js";
import { redrawAll } from "./charts.js";
import { openHelp } from "./help.js";
import * as overview from "./views/overview.js";
import * as step from "./views/step.js";
import * as trajectory from "./views/trajectory.js";
import * as group from "./views/group.js";
import * as failures from "./views/failures.js";
import * as search from "./views/search.js";
import * as compare from "./views/compare.js";
import { statusPill } from "./status.js";

const VIEWS = { overview, step, trajectory, group, failures, search, compare };
const TABS = [["overview", "Overview"], ["step", "Steps"], ["failures", "Failures"], ["search", "Search"], ["compare", "Compare"]];
const bar = document.getElementById("bar");
const root = document.getElementById("view");

let states = [];
let route = null;
let view = null;
let isLinked = true;
let visit = 0;

/** Address of a view of a run. */
export function address(run, ...parts) {
  return `#/${[run, ...parts].map((part) => encodeURIComponent(part)).join("/")}`;
}

function readRoute() {
  const [run, name, ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const key = states.some((state) => state.key === run) ? run : states[0].key;
  return { run: key, name: name in VIEWS ? name : "overview", parts };
}

async function open() {
  const number = ++visit;
  view?.close?.();
  view = null;
  route = readRoute();
  drawBar();
  document.title = `${route.run} · agentrl`;
  const page = h("div.view");
  try {
    const opened = await VIEWS[route.name].show(page, { ...route, state: stateOf(route.run), states, address, go });
    if (number !== visit) { opened?.close?.(); return; }
    view = opened;
  } catch (error) {
    if (number !== visit) return;
    fill(page, h("div.banner.bad", null, error.message));
    if (!(error.name === "RequestError")) console.error(error);
  }
  root.replaceChildren(page);
  view?.ready?.();
  if (!view?.keepScroll) scrollTo(0, 0);
  root.focus({ preventScroll: true });
}

function go(...parts) {
  location.hash = address(...parts);
}

function stateOf(run) {
  return states.find((state) => state.key === run);
}

function drawBar() {
  const state = stateOf(route.run);
  const names = states.length === 1
    ? h("span.name", { title: state.key }, state.key)
    : h("select", { "aria-label": "run", onchange: (event) => go(event.target.value, route.name) },
      states.map(({ key }) => h("option", { value: key, selected: key === route.run }, key)));
  fill(bar,
    h("a.brand", { href: address(route.run) }, h("img", { src: "/static/icon.svg", alt: "" }), h("span", null, "agentrl")),
    h("div.run-name", null, names, statusPill(state), !isLinked && h("span.pill.bad", null, "server gone")),
    h("nav.tabs", null, TABS.filter(([name]) => name !== "compare" || states.length > 1).map(([name, label]) =>
      h("a", { href: address(route.run, name), "aria-current": VIEWS[route.name].tab === name && "page" }, label))),
    h("div.tools", null,
      h("button.button.icon", { type: "button", title: "Light or dark (t)", onclick: toggleTheme }, "◐"),
      h("button.button.icon", { type: "button", title: "Keys (?)", onclick: openHelp }, "?")));
}

function toggleTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  redrawAll();
  view?.onTheme?.();
}

function onkey(event) {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    else if (!document.querySelector("dialog[open]")) view?.up?.();
    return;
  }
  if (isTyping || document.querySelector("dialog[open]")) return;
  const name = { ArrowDown: "j", ArrowUp: "k", ArrowLeft: "h", ArrowRight: "l" }[event.key] ?? event.key;
  const action = view?.keys?.[name] ?? { "?": openHelp, t: toggleTheme, "/": focusFilter }[name]
    ?? (/^[1-9]$/.test(name) && TABS[name - 1] ? () => go(route.run, TABS[name - 1][0]) : null);
  if (!action) return;
  event.preventDefault();
  action(event);
}

function focusFilter() {
  const field = document.querySelector("[data-filter]");
  field?.focus();
  field?.select?.();
}

function onnews(next) {
  const before = stateOf(route.run);
  states = next;
  drawBar();
  const state = stateOf(route.run);
  if (JSON.stringify(before) !== JSON.stringify(state)) view?.onNews?.(state, before);
  view?.onAnyNews?.(states);
}

async function start() {
  states = await get("/runs");
  await open();
  addEventListener("hashchange", open);
  addEventListener("keydown", onkey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    if (!localStorage.getItem("theme") && event.matches !== (document.documentElement.dataset.theme === "dark")) {
      toggleTheme();
      localStorage.removeItem("theme");
    }
  });
  follow(onnews, (linked) => {
    if (linked === isLinked) return;
    isLinked = linked;
    drawBar();
  });
}

start();

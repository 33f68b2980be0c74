// The list of keys.

import { h } from "./dom.js";

const KEYS = [
  [["j", "k"], "next and previous entry of a list; arrows too"],
  [["Enter"], "open the entry"],
  [["Esc"], "leave a field, else one level up"],
  [["/"], "go to the filter or search field"],
  [["h", "l"], "previous and next step or trajectory"],
  [["c", "x"], "conversation or tokens of a trajectory"],
  [["n"], "next unlikely token"],
  [["b"], "in a group: compare with this trajectory"],
  [["1", "…", "5"], "overview, steps, failures, search, compare"],
  [["t"], "light or dark"],
  [["?"], "this list"],
];

export function openHelp() {
  const dialog = h("dialog", { onclick: (event) => event.target === dialog && dialog.close(), onclose: () => dialog.remove() },
    h("h1", null, "Keys"),
    h("dl", null, KEYS.map(([keys, text]) => [
      h("dt", null, keys.map((key) => [h("kbd", null, key), " "])), h("dd", null, text)])));
  document.body.append(dialog);
  dialog.showModal();
}

// Elements. Text of a run enters the page only as text nodes, here; nothing sets `innerHTML`.

/** Return an element: `h("div.panel", {onclick, title}, child, "text", [more])`. */
export function h(spec, props, ...children) {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (name === "class") element.className = `${element.className} ${value}`.trim();
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace the content of an element. */
export function fill(element, ...children) {
  element.textContent = "";
  append(element, children);
  return element;
}

/** Return buttons of which one is pressed; `choices` maps values to labels. */
export function segments(choices, value, onchoice, label) {
  const buttons = Object.entries(choices).map(([key, text]) =>
    h("button", { type: "button", "aria-pressed": String(key === value), "data-value": key, onclick: () => choose(key) }, text));
  const choose = (key) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === key));
    onchoice(key);
  };
  return h("div.segments", { role: "group", "aria-label": label }, buttons);
}

/** Return a colour or size of the theme, for canvases. */
export function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Return `function` delayed until `ms` have passed without another call. */
export function debounced(ms, callback) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...values), ms);
  };
}

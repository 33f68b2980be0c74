// A table of trajectories: columns that sort, rows that load as one scrolls, and a selection for keys.

import { h, fill } from "./dom.js";

/** `columns`: [{name, label, cell(row), title, isText}]; `load({sort, descending, cursor})` returns a page. */
export class Table {
  constructor({ columns, load, onopen, sort, descending = false }) {
    Object.assign(this, { columns, load, onopen, sort, descending, rows: [], selected: -1, next: null, request: 0 });
    this.body = h("tbody");
    this.header = h("tr", null, columns.map((column) => this.heading(column)));
    this.sentinel = h("div.sentinel");
    this.element = h("div.table", null, h("table", null, h("thead", null, this.header), this.body), this.sentinel);
    this.observer = new IntersectionObserver(([entry]) => entry.isIntersecting && this.more(), { rootMargin: "600px" });
    this.observer.observe(this.sentinel);
  }

  heading(column) {
    const button = h("button", { type: "button", title: column.title, onclick: () => this.sortBy(column) }, column.label);
    return h("th", { class: column.isText ? "text" : "", scope: "col", "data-name": column.name }, button);
  }

  sortBy(column) {
    this.descending = this.sort === column.name ? !this.descending : !column.isText;
    this.sort = column.name;
    return this.reload();
  }

  markSorted() {
    for (const cell of this.header.children) {
      const isSorted = cell.dataset.name === this.sort;
      cell.setAttribute("aria-sort", isSorted ? (this.descending ? "descending" : "ascending") : "none");
    }
  }

  /** Load the first page with the present order, keep the selection where it is in there, and return the page. */
  async reload(selected = this.rows[this.selected]?.row) {
    this.markSorted();
    const request = ++this.request;
    const page = await this.load({ sort: this.sort, descending: this.descending });
    if (request !== this.request) return page;
    this.rows = [];
    this.numPages = 0;
    this.body.replaceChildren();
    this.selected = -1;
    this.add(page);
    const index = this.rows.findIndex((row) => row.row === selected);
    if (index >= 0) this.select(index, false);
    return page;
  }

  async more() {
    if (!this.next || this.isLoading) return;
    this.isLoading = true;
    const request = this.request;
    try {
      const page = await this.load({ sort: this.sort, descending: this.descending, cursor: this.next });
      if (request === this.request) this.add(page);
    } finally {
      this.isLoading = false;
    }
  }

  add(page) {
    const start = this.rows.length;
    this.rows.push(...page.rows);
    this.next = page.next;
    this.numPages += 1;
    this.body.append(...page.rows.map((row, index) =>
      h("tr", { onclick: () => this.onopen(row), onmouseenter: () => this.select(start + index, false) },
        this.columns.map((column) => h("td", { class: column.isText ? "text" : "" }, column.cell(row))))));
    if (!this.rows.length) fill(this.body, h("tr.none", null, h("td", { colspan: this.columns.length }, "No trajectory matches.")));
  }

  select(index, scroll = true) {
    if (!this.rows.length) return;
    this.body.children[this.selected]?.classList.remove("selected");
    this.selected = Math.max(0, Math.min(this.rows.length - 1, index));
    const row = this.body.children[this.selected];
    row.classList.add("selected");
    if (scroll) row.scrollIntoView({ block: "nearest" });
    if (this.selected > this.rows.length - 20) this.more();
  }

  get keys() {
    return {
      j: () => this.select(this.selected + 1),
      k: () => this.select(this.selected - 1),
      Enter: () => this.rows[this.selected] && this.onopen(this.rows[this.selected]),
    };
  }

  close() {
    this.observer.disconnect();
  }
}

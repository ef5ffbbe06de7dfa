// The list of tags: how many are expected to be missing, how many suggestions are left, how many were decided.

import { byId, h } from "./dom.js";

export class TagList extends EventTarget {
  constructor(tags, place) {
    super();
    this.tags = new Map(tags.map((tag) => [tag.name, tag]));
    this.place = place;
    this.list = byId("tag-list");
    this.buttons = new Map(); // name -> element
    this.search = byId("tag-search");
    this.sort = byId("tag-sort");
    this.sort.value = localStorage.getItem("tag-sort") ?? "next";
    this.search.addEventListener("input", () => this.draw());
    this.search.addEventListener("keydown", (event) => this.onSearchKey(event));
    this.sort.addEventListener("change", () => {
      localStorage.setItem("tag-sort", this.sort.value);
      this.order = null;
      this.draw();
    });
    this.list.addEventListener("keydown", (event) => this.onListKey(event));
  }

  update(summary) {
    this.tags.set(summary.name, summary);
    this.buttons.get(summary.name)?.replaceChildren(...this.content(summary));
  }

  /** Names in the order of the list. It is stable while counts change, so that nothing jumps. */
  names() {
    const by = {
      next: (a, b) => b.next - a.next,
      expected: (a, b) => b.expected - a.expected,
      left: (a, b) => b.left - a.left,
      known: (a, b) => a.known - b.known,
      name: () => 0,
    }[this.sort.value];
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    this.order ??= [...this.tags.values()].sort((a, b) => by(a, b) || compare(a.name, b.name)).map((tag) => tag.name);
    const text = this.search.value.trim().toLowerCase();
    return this.order.filter((name) => name.toLowerCase().includes(text));
  }

  /** The next tag: the surest other one or, in a list sorted differently, the one below. */
  after(name) {
    const names = this.names();
    if (this.sort.value !== "next") return names[(names.indexOf(name) + 1) % names.length];
    const others = names.filter((other) => other !== name).map((other) => this.tags.get(other));
    return others.reduce((best, tag) => (best && best.next >= tag.next ? best : tag), null)?.name;
  }

  /** The tag of whose next screen most is expected to be right. */
  surest() {
    return [...this.tags.values()].reduce((best, tag) => (best.next >= tag.next ? best : tag));
  }

  draw() {
    if (this.counted !== this.place.get("queue")) {
      this.counted = this.place.get("queue"); // each queue has counts of its own
      this.buttons.clear();
    }
    const names = this.names();
    const shown = [...this.buttons.keys()];
    if (names.length !== shown.length || names.some((name, place) => name !== shown[place])) this.drawButtons(names);
    const current = this.place.get("tag");
    const reachable = names.includes(current) ? current : names[0];
    for (const [name, button] of this.buttons) {
      if (name === current) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      button.tabIndex = name === reachable ? 0 : -1;
    }
    this.buttons.get(current)?.scrollIntoView({ block: "nearest" });
  }

  drawButtons(names) {
    const button = (name) => h("button", { class: "tag", onclick: () => this.choose(name) }, ...this.content(this.tags.get(name)));
    this.buttons = new Map(names.map((name) => [name, button(name)]));
    this.list.replaceChildren(...[...this.buttons.values()].map((element) => h("li", {}, element)));
    if (!names.length) this.list.append(h("li", { class: "nothing" }, "No tags match."));
  }

  content(tag) {
    const decided = tag.present + tag.absent + tag.unsure;
    const share = decided + tag.left ? decided / (decided + tag.left) : 0;
    const bar = h("span", { class: "done", "aria-hidden": "true" }, h("i"));
    bar.firstChild.style.width = `${100 * share}%`;
    const expected = tag.expected >= 10 ? Math.round(tag.expected) : tag.expected.toFixed(1);
    const counts = {
      doubtful: ["given tags that the picture speaks against", `${tag.doubtful} doubtful`, `${tag.known} known`],
      disputed: ["labels on which two reviewers disagree", `${tag.disputed} disputed`, `${tag.known} known`],
    }[this.place.get("queue")] ?? ["estimated missing tags", `≈ ${expected} missing`, `${tag.left} left`];
    const title = `${tag.known} known; decided: ${tag.present} yes, ${tag.absent} no, ${tag.unsure} unsure`;
    return [
      h("span", { class: "tag-name", dir: "auto" }, tag.name, tag.new ? h("span", { class: "new", title: "added in this review" }, " new") : null),
      h("span", { class: "tag-missing", title: counts[0] }, counts[1]),
      h("span", { class: "tag-counts", title: tag.description ? `${tag.description}\n${title}` : title }, `${counts[2]} · ${decided} decided`),
      bar,
    ];
  }

  /** All tags anew: some were added, renamed or are gone. */
  replace(tags) {
    const before = this.order ?? [];
    this.tags = new Map(tags.map((tag) => [tag.name, tag]));
    const added = tags.map((tag) => tag.name).filter((name) => !before.includes(name));
    this.order = [...added, ...before.filter((name) => this.tags.has(name))]; // a new one comes first: it is being worked on
    this.buttons.clear();
    this.draw();
  }

  choose(name) {
    this.dispatchEvent(new CustomEvent("choose", { detail: name }));
  }

  onSearchKey(event) {
    if (event.key === "Enter" && this.names().length) {
      this.choose(this.names()[0]);
      this.search.value = "";
      this.draw();
    } else if (event.key === "Escape") {
      this.search.value = "";
      this.draw();
      this.dispatchEvent(new Event("leave"));
    } else if (event.key === "ArrowDown") {
      this.list.querySelector("button")?.focus();
      event.preventDefault();
    }
  }

  onListKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = [...this.list.querySelectorAll("button")];
    const next = buttons[buttons.indexOf(document.activeElement) + step];
    (next ?? (step < 0 ? this.search : null))?.focus();
  }
}

// The grid of stacks. Only visible rows are in the DOM, however many there are.

import { large, thumbnail } from "./api.js";
import { ANSWERS, h, plural, probability } from "./dom.js";

const GAP = 10;
const MARGIN = 12;
const SIZES = [110, 140, 170, 220, 300, 420]; // of a tile, in pixels

/** What was decided about a stack: a label when all of its images have the same one, "partly", or null. */
export function stackState(decisions, tag, stack) {
  const labels = stack.images.map(({ image }) => decisions.of(tag, image)).map((l) => (l?.decided ? l.label : null));
  if (labels.every((label) => label === null)) return null;
  return labels.every((label) => label === labels[0]) ? labels[0] : "partly";
}

/** An image that says in its place why it is not there. */
export function picture(image, alt, { big = false } = {}) {
  const source = big ? large(image) : thumbnail(image);
  const shown = h("img", { src: source, alt, decoding: "async", draggable: "false" });
  shown.addEventListener("error", async () => {
    const answer = await fetch(source).catch(() => null);
    const reason = (await answer?.json().catch(() => null))?.error ?? "cannot be shown";
    shown.replaceWith(h("div", { class: "no-picture", role: "img", "aria-label": `${alt}: ${reason}` }, "⚠ ", reason));
  });
  return shown;
}

export class Grid extends EventTarget {
  constructor(decisions) {
    super();
    this.decisions = decisions;
    this.queue = null;
    this.tiles = new Map(); // position -> element
    this.rowElements = new Map();
    this.selected = new Set(); // positions
    this.focused = 0;
    this.anchor = 0;
    this.size = SIZES.includes(Number(localStorage.getItem("tile"))) ? Number(localStorage.getItem("tile")) : 170;
    this.area = h("div", { class: "grid-area" });
    this.element = h(
      "div",
      { class: "grid", role: "grid", "aria-multiselectable": "true", "aria-label": "Candidates" },
      this.area,
    );
    this.element.addEventListener("scroll", () => this.draw());
    this.element.addEventListener("pointerdown", (event) => this.startBox(event));
    new ResizeObserver(() => this.draw(true)).observe(this.element);
  }

  show(queue) {
    this.queue = queue;
    this.selected.clear();
    this.focused = this.anchor = 0;
    this.element.scrollTop = 0;
    this.draw(true);
  }

  // --- geometry ---

  measure() {
    const width = this.element.clientWidth - 2 * MARGIN;
    const coarse = matchMedia("(pointer: coarse)").matches;
    this.columns = Math.max(1, Math.floor((width + GAP) / (this.size + GAP)));
    this.tileWidth = Math.floor((width - GAP * (this.columns - 1)) / this.columns);
    this.tileHeight = Math.round(this.tileWidth * 0.75) + (coarse ? 52 : 38);
    this.rowHeight = this.tileHeight + GAP;
    this.rows = Math.ceil((this.queue?.length ?? 0) / this.columns);
    this.area.style.height = `${MARGIN + this.rows * this.rowHeight + MARGIN}px`;
  }

  /** Rows that can be seen, [first, end): all that show more than a sliver. */
  visibleRows(sliver = 0.25) {
    const top = this.element.scrollTop - MARGIN;
    const first = Math.max(0, Math.floor(top / this.rowHeight + sliver));
    const end = Math.ceil((top + this.element.clientHeight) / this.rowHeight - sliver);
    return [first, Math.min(Math.max(end, first + 1), this.rows)];
  }

  visiblePlaces() {
    const [first, end] = this.visibleRows();
    const last = Math.min(end * this.columns, this.queue.length);
    return Array.from({ length: Math.max(last - first * this.columns, 0) }, (_, n) => first * this.columns + n);
  }

  // --- drawing ---

  draw(anew = false) {
    if (!this.queue || !this.element.isConnected || !this.element.clientWidth) return;
    const place = this.focused;
    const had = this.hasFocus; // a re-created tile loses it
    if (anew) {
      for (const row of this.rowElements.values()) row.remove();
      this.rowElements.clear();
      this.tiles.clear();
    }
    this.measure();
    this.element.setAttribute("aria-rowcount", this.rows);
    this.element.setAttribute("aria-colcount", this.columns);
    const [first, end] = this.visibleRows(0);
    this.queue.seen = Math.max(this.queue.seen, Math.min(this.visibleRows()[1] * this.columns, this.queue.length));
    const [from, to] = [Math.max(0, first - 1), Math.min(end + 1, this.rows)];
    for (const [row, element] of this.rowElements) {
      if (row < from || row >= to) this.dropRow(row, element);
    }
    for (let row = from; row < to; row++) this.drawRow(row);
    const screen = Math.max((end - first) * this.columns, 1);
    this.queue.want(from * this.columns, to * this.columns + 2 * screen).then(() => this.preload(to * this.columns, screen));
    this.focused = Math.min(place, Math.max(this.queue.length - 1, 0));
    this.markFocus();
    if (had && !this.hasFocus) this.tiles.get(this.focused)?.focus({ preventScroll: true });
  }

  dropRow(row, element) {
    element.remove();
    this.rowElements.delete(row);
    for (let column = 0; column < this.columns; column++) this.tiles.delete(row * this.columns + column);
  }

  drawRow(row) {
    let element = this.rowElements.get(row);
    if (!element) {
      element = h("div", { class: "grid-row", role: "row", "aria-rowindex": row + 1 });
      element.style.transform = `translateY(${MARGIN + row * this.rowHeight}px)`;
      this.area.append(element);
      this.rowElements.set(row, element);
    }
    const [first, end] = [row * this.columns, Math.min((row + 1) * this.columns, this.queue.length)];
    for (let place = first; place < end; place++) {
      const stack = this.queue.stacks.get(place) ?? null;
      const old = this.tiles.get(place);
      if (old && old.stack === stack) continue;
      const tile = this.tile(place, stack);
      if (old) old.replaceWith(tile);
      else element.append(tile);
      this.tiles.set(place, tile);
    }
    for (let place = end; place < (row + 1) * this.columns; place++) {
      this.tiles.get(place)?.remove();
      this.tiles.delete(place);
    }
  }

  tile(place, stack) {
    const tile = h("div", {
      class: "tile",
      role: "gridcell",
      tabindex: place === this.focused ? "0" : "-1",
      "aria-colindex": (place % this.columns) + 1,
      "data-place": place,
    });
    tile.style.width = `${this.tileWidth}px`;
    tile.style.height = `${this.tileHeight}px`;
    tile.stack = stack;
    tile.addEventListener("focus", () => this.focusIn(place));
    if (!stack) {
      tile.classList.add("empty");
      tile.setAttribute("aria-label", "Loading");
      return tile;
    }
    const [first] = stack.images;
    tile.dataset.image = first.image;
    const answer = (label, title) => {
      const { name, sign, word } = ANSWERS[label];
      const act = (event) => (event.stopPropagation(), this.fire("answer", { place, label }));
      const attributes = { class: `answer ${name}`, tabindex: "-1", title, "aria-label": word, onclick: act };
      return h("button", attributes, sign);
    };
    const members = stack.images.length;
    tile.append(
      h("div", { class: "picture" }, picture(first.image, first.name)),
      h("div", { class: "state" }),
      h(
        "div",
        { class: "foot" },
        h("span", { class: "chance", title: "probability" }, probability(first.probability)),
        h("span", { class: "answers" }, answer(1, "Yes (a)"), answer(-1, "No (x)"), answer(0, "Unsure (u)")),
      ),
    );
    if (members > 1) {
      tile.classList.add("burst");
      const title = `${members} nearly identical images, decided together: show them (e)`;
      const expand = (event) => (event.stopPropagation(), this.fire("expand", { place }));
      tile.append(h("button", { class: "count", tabindex: "-1", title, "aria-label": title, onclick: expand }, `▤ ${members}`));
    }
    tile.addEventListener("dblclick", () => this.fire("open", { place }));
    this.mark(tile, place);
    return tile;
  }

  /** Selection and decision, on a tile that is there. */
  mark(tile, place) {
    const stack = tile.stack;
    const selected = this.selected.has(place);
    tile.classList.toggle("selected", selected);
    tile.setAttribute("aria-selected", selected);
    if (!stack) return;
    const tag = this.queue.tag;
    const state = stackState(this.decisions, tag, stack);
    const saving = stack.images.some(({ image }) => this.decisions.isSaving(tag, image));
    const { name, sign, word } = state === "partly" ? { name: "partly", sign: "◐", word: "Partly" } : (ANSWERS[state] ?? {});
    for (const other of ["yes", "no", "unsure", "partly"]) tile.classList.toggle(other, other === name);
    tile.classList.toggle("saving", saving);
    tile.querySelector(".state").textContent = saving ? "Saving…" : name ? `${sign} ${word}` : "";
    const [first] = stack.images;
    const who = this.decisions.of(tag, first.image)?.reviewer;
    const decided = name ? `decided ${word}${who ? ` by ${who}` : ""}` : "not decided";
    const more = stack.images.length > 1 ? `, and ${plural(stack.images.length - 1, "nearly identical image")}` : "";
    const chance = document.body.classList.contains("hide-chances") ? "" : `, probability ${probability(first.probability)}`;
    tile.setAttribute("aria-label", `${first.name}${more}: ${tag}${chance}, ${decided}`);
    const said = first.said?.length ? `\n${first.said.join(", ")}` : "";
    tile.title = (name && who ? `${first.name}\n${word}, by ${who}` : first.name) + said;
    if (said && !state) tile.querySelector(".state").textContent = first.said.join(", ");
  }

  markAll() {
    for (const [place, tile] of this.tiles) this.mark(tile, place);
  }

  preload(first, number) {
    for (let place = first; place < Math.min(first + number, this.queue.length); place++) {
      const stack = this.queue.stacks.get(place);
      if (stack) new Image().src = thumbnail(stack.images[0].image);
    }
  }

  fire(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  // --- focus and selection ---

  get hasFocus() {
    return this.element.contains(document.activeElement);
  }

  focusIn(place) {
    if (place !== this.focused) {
      this.focused = place;
      this.markFocus();
    }
    this.fire("focused", { place });
  }

  markFocus() {
    for (const [place, tile] of this.tiles) tile.tabIndex = place === this.focused ? 0 : -1;
  }

  /** Move the focus, by rows and columns; with `extend` everything since the start is selected. */
  move(rows, columns, extend = false) {
    const target = this.focused + rows * this.columns + columns;
    if (rows && (target < 0 || target >= this.queue.length)) {
      if (target < 0) return;
      if (Math.floor(this.focused / this.columns) === this.rows - 1) return;
    }
    this.go(Math.max(0, Math.min(target, this.queue.length - 1)), extend);
  }

  go(place, extend = false) {
    if (!this.queue.length) return;
    if (extend) this.selectRange(this.anchor, place);
    else {
      this.selected.clear();
      this.anchor = place;
    }
    this.focused = place;
    this.scrollTo(place);
    this.draw();
    this.markAll();
    this.tiles.get(place)?.focus({ preventScroll: true });
  }

  scrollTo(place) {
    const top = MARGIN + Math.floor(place / this.columns) * this.rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top - GAP;
    else if (top + this.tileHeight > scrollTop + clientHeight) {
      this.element.scrollTop = top + this.tileHeight + GAP - clientHeight;
    }
  }

  page(direction, extend = false) {
    const rows = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight));
    const place = this.focused + direction * rows * this.columns;
    this.go(Math.max(0, Math.min(place, this.queue.length - 1)), extend);
  }

  selectRange(from, to) {
    this.selected.clear();
    for (let place = Math.min(from, to); place <= Math.max(from, to); place++) this.selected.add(place);
    this.markAll();
    this.fire("selection", {});
  }

  selectPlaces(places) {
    this.selected = new Set(places);
    this.markAll();
    this.fire("selection", {});
  }

  toggle(place) {
    if (!this.selected.delete(place)) this.selected.add(place);
    this.anchor = place;
    this.markAll();
    this.fire("selection", {});
  }

  /** The stacks that an answer is about: those selected, or else the one in focus. */
  targets() {
    const places = this.selected.size ? [...this.selected].sort((a, b) => a - b) : [this.focused];
    return places.map((place) => this.queue.stacks.get(place)).filter(Boolean);
  }

  resize(steps) {
    const place = Math.max(0, Math.min(SIZES.indexOf(this.size) + steps, SIZES.length - 1));
    this.size = SIZES[place];
    localStorage.setItem("tile", this.size);
    this.draw(true);
    this.scrollTo(this.focused);
  }

  // --- pointer: click, shift-click, ctrl-click, tap, and a box drawn with the mouse ---

  startBox(event) {
    const tile = event.target.closest(".tile");
    if (event.button !== 0 || event.target.closest("button") || event.offsetX > this.element.clientWidth) return;
    const place = tile ? Number(tile.dataset.place) : null;
    if (event.pointerType !== "mouse") {
      if (place !== null) tile.addEventListener("click", () => this.tap(place), { once: true });
      return;
    }
    event.preventDefault();
    const start = this.point(event);
    let box = null;
    const move = (moved) => {
      const now = this.point(moved);
      if (!box && Math.hypot(now.x - start.x, now.y - start.y) > 8) box = this.area.appendChild(h("div", { class: "box" }));
      if (box) this.drawBox(box, start, now);
    };
    const end = () => {
      removeEventListener("pointermove", move);
      if (box) box.remove();
      else if (place !== null) this.click(place, event);
      if (place !== null) this.tiles.get(place)?.focus({ preventScroll: true });
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end, { once: true });
  }

  point(event) {
    const corner = this.area.getBoundingClientRect();
    return { x: event.clientX - corner.left, y: event.clientY - corner.top };
  }

  drawBox(box, a, b) {
    const [left, right] = [Math.min(a.x, b.x), Math.max(a.x, b.x)];
    const [top, bottom] = [Math.min(a.y, b.y), Math.max(a.y, b.y)];
    Object.assign(box.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    const column = (x) => (x - MARGIN) / (this.tileWidth + GAP);
    const row = (y) => (y - MARGIN) / this.rowHeight;
    const places = [];
    for (let r = Math.max(0, Math.floor(row(top))); r <= Math.min(this.rows - 1, row(bottom)); r++) {
      for (let c = Math.max(0, Math.floor(column(left))); c <= Math.min(this.columns - 1, column(right)); c++) {
        if (r * this.columns + c < this.queue.length) places.push(r * this.columns + c);
      }
    }
    this.selectPlaces(places);
  }

  click(place, event) {
    if (event.shiftKey) this.selectRange(this.anchor, place);
    else if (event.ctrlKey || event.metaKey) this.toggle(place);
    else {
      this.anchor = place;
      this.selectPlaces([]);
    }
    this.focusIn(place);
  }

  tap(place) {
    this.toggle(place);
    this.focusIn(place);
  }
}

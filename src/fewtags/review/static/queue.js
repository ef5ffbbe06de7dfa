// A queue on the server, partly loaded here. Stacks that were seen keep their position; those after
// them are re-ranked after a decision.

import { api } from "./api.js";

export class Queue extends EventTarget {
  constructor(decisions, tag) {
    super();
    this.decisions = decisions;
    this.tag = tag;
    this.stacks = new Map(); // position -> {place, images: [{image, name, probability}]}
    this.asked = new Set(); // positions in flight
    this.seen = 0;
    this.length = 0;
    this.generation = 0;
    this.about = null;
  }

  async open(view) {
    const generation = ++this.generation;
    const about = await api.openQueue(view);
    if (generation !== this.generation) return;
    this.view = view;
    this.id = about.id;
    this.stacks.clear();
    this.asked.clear();
    this.seen = 0;
    this.know(about);
  }

  know(about) {
    this.about = about;
    this.length = about.stacks_in_all;
    this.dispatchEvent(new Event("about"));
  }

  /** Fetch the stacks of these places that are not known yet. */
  async want(first, end) {
    end = Math.min(end, this.length);
    while (first < end && (this.stacks.has(first) || this.asked.has(first))) first++;
    while (end > first && (this.stacks.has(end - 1) || this.asked.has(end - 1))) end--;
    if (first < end) await this.fetch(first, Math.min(end - first, 500));
  }

  /** After decisions: everything after the seen stacks is in a new order. */
  async refresh() {
    this.generation++;
    for (const place of [...this.stacks.keys()]) if (place >= this.seen) this.stacks.delete(place);
    this.asked.clear();
    await this.fetch(this.seen, 60);
  }

  async fetch(offset, limit) {
    const generation = this.generation;
    for (let place = offset; place < offset + limit; place++) this.asked.add(place);
    try {
      const found = await api.window(this.id, offset, limit, this.seen);
      if (generation !== this.generation) return;
      for (const stack of found.stacks) {
        for (const image of stack.images) this.decisions.put(this.tag, image);
        this.stacks.set(stack.place, stack);
      }
      this.know({ ...found, id: this.id });
    } catch (error) {
      if (generation !== this.generation) return;
      if (error.status === 404) await this.open(this.view); // the server has forgotten it
      else this.dispatchEvent(new CustomEvent("failed", { detail: { error } }));
    } finally {
      if (generation === this.generation)
        for (let place = offset; place < offset + limit; place++) this.asked.delete(place);
    }
  }
}

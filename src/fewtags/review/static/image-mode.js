// One image large, with all its tags: known, suggested, rejected, unsure, and the others with a search field.

import { api, large } from "./api.js";
import { ANSWERS, h, probability } from "./dom.js";
import { HeatPicture, nearest } from "./evidence.js";

const MOST = 100; // rows of a group: a booru tagger has thousands of tags
const GROUPS = [
  ["suggested", "Suggested"],
  ["known", "Known"],
  ["rejected", "Rejected"],
  ["unsure", "Unsure"],
  ["others", "All others"],
];

function groupOf(tag) {
  if (tag.suggested) return "suggested";
  if (tag.label === 1) return "known";
  if (tag.label === -1) return "rejected";
  return tag.decided ? "unsure" : "others";
}

export class ImageMode extends EventTarget {
  constructor(decisions, { heatMaps, readOnly }) {
    super();
    this.decisions = decisions;
    this.readOnly = readOnly;
    this.heatMaps = heatMaps;
    this.picture = new HeatPicture();
    this.picture.element.addEventListener("click", (event) => this.zoom(event));
    this.title = h("div", { class: "image-title" });
    this.element = h("div", { class: "image-mode" }, this.title, this.picture.element);
    this.panel = h("div", { class: "image-tags" });
    this.found = null;
    this.current = null; // the tag in focus
    this.asked = 0;
  }

  async show(image, { tag, position, next }) {
    const asked = ++this.asked;
    this.image = image;
    const found = await api.image(image);
    if (asked !== this.asked) return;
    this.found = found;
    for (const other of found.tags) this.decisions.put(other.name, { ...other, image });
    // A tag stays in the group it was in when the image was opened, so that nothing moves while reviewing.
    this.groups = new Map(found.tags.map((other) => [other.name, groupOf(other)]));
    const order = (a, b) => b.probability - a.probability;
    this.suggestions = found.tags.filter((other) => this.groups.get(other.name) === "suggested").sort(order);
    this.current = found.tags.some((other) => other.name === tag) ? tag : (this.suggestions[0] ?? found.tags[0]).name;
    this.title.replaceChildren(h("strong", {}, found.name), h("span", { class: "quiet" }, position));
    this.picture.element.classList.remove("zoomed");
    this.picture.show(image, found.name, this.current);
    this.draw();
    if (next !== null) new Image().src = large(next);
  }

  draw() {
    const search = h("input", {
      type: "search",
      placeholder: "Search among all tags",
      "aria-label": "Search among all tags of this image",
      value: this.text ?? "",
      oninput: (event) => ((this.text = event.target.value), this.drawGroups()),
    });
    this.lists = h("div", { class: "groups" });
    this.near = h("div", { class: "near" });
    const heatButton = this.heatMaps
      ? h("button", { class: "heat-button", "aria-pressed": String(this.picture.on), onclick: () => this.toggleHeat() }, "Heat map (h)")
      : null;
    this.heatButton = heatButton;
    this.panel.replaceChildren(h("div", { class: "row" }, search, heatButton), this.lists, this.near);
    this.drawGroups();
    this.showNear();
  }

  drawGroups() {
    const text = (this.text ?? "").trim().toLowerCase();
    const had = this.lists.contains(document.activeElement);
    const parts = [];
    for (const [group, title] of GROUPS) {
      const tags = this.tagsOf(group).filter((tag) => tag.name.toLowerCase().includes(text));
      if (!tags.length && !(group === "suggested" && !text)) continue;
      const rows = tags.slice(0, MOST).map((tag) => this.row(tag, group));
      if (tags.length > MOST) rows.push(h("li", { class: "quiet" }, `${tags.length - MOST} more: search for them.`));
      if (!rows.length) rows.push(h("li", { class: "quiet" }, "The model suggests nothing here."));
      parts.push(h("section", {}, h("h3", {}, `${title} (${tags.length})`), h("ul", {}, ...rows)));
    }
    this.lists.replaceChildren(...parts);
    if (had) this.focusCurrent();
  }

  tagsOf(group) {
    if (group === "suggested") return this.suggestions;
    const tags = this.found.tags.filter((tag) => this.groups.get(tag.name) === group);
    return group === "others" ? tags.sort((a, b) => b.probability - a.probability) : tags;
  }

  row(tag, group) {
    const label = this.decisions.of(tag.name, this.image);
    const saving = this.decisions.isSaving(tag.name, this.image);
    const state = label.decided ? ANSWERS[label.label] : null;
    const number = group === "suggested" ? this.suggestions.indexOf(tag) + 1 : 0;
    const answer = (value) => {
      const { name, sign, word } = ANSWERS[value];
      const pressed = String(label.decided && label.label === value);
      const act = () => (this.focusTag(tag.name), this.answer(value));
      return h("button", { class: `answer ${name}`, tabindex: "-1", "aria-pressed": pressed, "aria-label": `${word}: ${tag.name}`, onclick: act }, sign);
    };
    const given = !label.decided && label.label === 1 ? "given" : "";
    return h(
      "li",
      {
        class: `image-tag ${state?.name ?? ""} ${saving ? "saving" : ""}`,
        tabindex: tag.name === this.current ? "0" : "-1",
        "data-tag": tag.name,
        "aria-label": `${tag.name}, probability ${probability(tag.probability)}, ${state ? state.word : given || "not decided"}`,
        onfocus: () => this.focusTag(tag.name, false),
      },
      number && number <= 9 ? h("kbd", {}, String(number)) : null,
      h("span", { class: "image-tag-name" }, tag.name),
      h("span", { class: "image-tag-state" }, saving ? "Saving…" : state ? `${state.sign} ${state.word}` : given),
      h("span", { class: "chance" }, probability(tag.probability)),
      this.readOnly ? null : h("span", { class: "answers" }, answer(1), answer(-1), answer(0)),
    );
  }

  // --- moving and answering ---

  focusTag(name, move = true) {
    if (name !== this.current) {
      this.current = name;
      for (const row of this.lists.querySelectorAll(".image-tag")) row.tabIndex = row.dataset.tag === name ? 0 : -1;
      this.picture.show(this.image, this.found.name, name);
      this.showNear();
    }
    if (move) this.focusCurrent();
  }

  focusCurrent() {
    this.lists?.querySelector(`[data-tag="${CSS.escape(this.current)}"]`)?.focus();
  }

  moveTag(step) {
    const rows = [...this.lists.querySelectorAll(".image-tag")];
    const place = rows.findIndex((row) => row.dataset.tag === this.current);
    const next = rows[Math.max(0, Math.min(place + step, rows.length - 1))];
    if (next) this.focusTag(next.dataset.tag);
  }

  answer(label) {
    this.dispatchEvent(new CustomEvent("answer", { detail: { image: this.image, tag: this.current, label } }));
  }

  /** Yes to the n-th suggestion; a second press resets it to unsure. */
  toggleSuggestion(number) {
    const tag = this.suggestions[number - 1];
    if (!tag) return;
    this.focusTag(tag.name);
    this.answer(this.decisions.of(tag.name, this.image).label === 1 ? 0 : 1);
  }

  toggleHeat() {
    if (!this.heatMaps) return;
    this.heatButton.setAttribute("aria-pressed", String(this.picture.toggle()));
  }

  zoom(event) {
    const box = this.picture.element;
    const corner = box.getBoundingClientRect();
    const [x, y] = [(event.clientX - corner.left) / corner.width, (event.clientY - corner.top) / corner.height];
    if (!box.classList.toggle("zoomed")) return;
    box.scrollLeft = x * box.scrollWidth - corner.width / 2;
    box.scrollTop = y * box.scrollHeight - corner.height / 2;
  }

  async showNear() {
    const [image, tag] = [this.image, this.current];
    await new Promise((resolve) => setTimeout(resolve, 60));
    if (image !== this.image || tag !== this.current) return;
    const found = await api.evidence(image, tag).catch(() => null);
    if (found && image === this.image && tag === this.current) {
      this.near.replaceChildren(h("div", { class: "near-tag" }, tag), nearest(found.nearest, tag));
    }
  }
}

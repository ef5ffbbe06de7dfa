// Why a tag is suggested: the probability, the most similar known images, and where in the picture it was seen.

import { api, heat } from "./api.js";
import { ANSWERS, h, probability } from "./dom.js";
import { picture } from "./grid.js";

/** Probability as a number and a bar, with a mark where the model begins to believe; a new tag may not know where. */
export function chanceBar(chance, threshold) {
  const bar = h("div", { class: "chance-bar", "aria-hidden": "true" }, h("i"), threshold === null ? null : h("b"));
  bar.firstChild.style.width = `${100 * chance}%`;
  if (threshold !== null) bar.lastChild.style.left = `${100 * threshold}%`;
  const beside = threshold === null ? "" : ` · threshold ${probability(threshold)}`;
  return h(
    "div",
    { class: "chance-box" },
    h("div", {}, h("strong", { class: "chance" }, probability(chance)), ` probability${beside}`),
    bar,
  );
}

/** Known positives that look most alike, as thumbnails. */
export function nearest(found, tag) {
  if (!found.length) return h("p", { class: "quiet" }, `No image is known to have “${tag}” yet.`);
  return h(
    "div",
    {},
    h("h3", {}, "Most similar known images"),
    h(
      "ul",
      { class: "nearest" },
      ...found.map((near) =>
        h(
          "li",
          { title: near.name },
          picture(near.image, `Known to have ${tag}: ${near.name}`),
          h("span", {}, near.similarity.toFixed(2)),
        ),
      ),
    ),
  );
}

/** A picture over which the heat map of a tag can be laid. */
export class HeatPicture {
  constructor(alt = "") {
    this.on = false;
    this.element = h("div", { class: "big-picture" });
    this.alt = alt;
  }

  show(image, name, tag) {
    if (this.image !== image) {
      this.image = image;
      this.plain = picture(image, name, { big: true });
      this.element.replaceChildren(this.plain);
      this.shownTag = null;
    }
    this.name = name;
    this.tag = tag;
    this.update();
  }

  toggle() {
    this.on = !this.on;
    this.update();
    return this.on;
  }

  update() {
    const wanted = this.on && this.tag ? this.tag : null;
    if (wanted === this.shownTag) return;
    this.shownTag = wanted;
    this.element.querySelector(".heat")?.remove();
    if (!wanted) return;
    const alt = `Where ${wanted} was seen in ${this.name}`;
    const layer = h("img", { class: "heat", src: heat(this.image, wanted), alt });
    layer.addEventListener("error", () => layer.replaceWith(h("div", { class: "heat no-picture" }, "No heat map for this image.")));
    this.element.append(layer);
  }
}

export class Evidence extends EventTarget {
  constructor(element, decisions, { heatMaps, readOnly }) {
    super();
    this.element = element;
    this.decisions = decisions;
    this.heatMaps = heatMaps;
    this.readOnly = readOnly;
    this.picture = new HeatPicture();
    this.asked = 0;
  }

  clear(text) {
    this.stack = null;
    this.element.replaceChildren(h("p", { class: "quiet" }, text));
  }

  /** About the first image of a stack. Arrow keys may pass over many: only where they rest is asked for. */
  show(stack, tag, labels) {
    this.stack = stack;
    this.tag = tag;
    const [first] = stack.images;
    const asked = ++this.asked;
    const details = h("div", { class: "details" });
    const buttons = h("div", { class: "big-answers" });
    if (!this.readOnly) {
      for (const label of [1, -1, 0]) {
        const { name, sign } = ANSWERS[label];
        const act = () => this.dispatchEvent(new CustomEvent("answer", { detail: { label } }));
        const [word, title] = labels[label];
        buttons.append(h("button", { class: `answer ${name}`, title, onclick: act }, h("span", { "aria-hidden": "true" }, sign), ` ${word}`));
      }
    }
    this.picture.show(first.image, first.name, tag);
    const heatButton = this.heatMaps
      ? h("button", { class: "heat-button", "aria-pressed": String(this.picture.on), onclick: () => this.toggleHeat() }, "Heat map (h)")
      : null;
    this.heatButton = heatButton;
    const like = () => this.dispatchEvent(new Event("like"));
    const likeButton = h("button", { class: "like-button", title: "Images that look like this one (m)", onclick: like }, "More like this (m)");
    this.element.replaceChildren(this.picture.element, h("div", { class: "file" }, h("span", {}, first.name), likeButton, heatButton), buttons, details);
    setTimeout(async () => {
      if (asked !== this.asked) return;
      const found = await api.evidence(first.image, tag).catch(() => null);
      if (!found || asked !== this.asked) return;
      details.replaceChildren(...this.details(found, first, tag));
    }, 60);
  }

  details(found, first, tag) {
    const { tag: mine, known } = found;
    const parts = [chanceBar(first.probability, found.threshold), nearest(found.nearest, tag)];
    parts.push(
      h("h3", {}, "Other tags of this image"),
      known.length
        ? h("div", { class: "chips" }, ...known.map((other) => h("span", { class: "chip" }, other)))
        : h("p", { class: "quiet" }, "None known."),
    );
    if (mine.decided) {
      const when = new Date(mine.decided_at).toLocaleString();
      parts.push(h("p", { class: "quiet" }, `${ANSWERS[mine.label].word}, by ${mine.reviewer || "somebody"}, ${when}`));
    }
    return parts;
  }

  toggleHeat() {
    if (!this.heatMaps || !this.stack) return;
    const on = this.picture.toggle();
    this.heatButton?.setAttribute("aria-pressed", String(on));
  }
}

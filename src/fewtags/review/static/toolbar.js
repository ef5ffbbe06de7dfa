// The toolbar above the grid: what is shown, the counts, the filters, and bulk actions.

import { h, percent, plural, probability } from "./dom.js";
import { picture } from "./grid.js";
import { aboutMissing } from "./tags.js";

const STATUSES = [
  ["open", "undecided"],
  ["decided", "decided"],
  ["present", "decided: yes"],
  ["absent", "decided: no"],
  ["unsure", "decided: unsure"],
  ["all", "all"],
];

export class Toolbar extends EventTarget {
  constructor(place, tags, readOnly) {
    super();
    this.place = place;
    this.count = h("div", { class: "count-line", role: "status" });
    this.banner = h("div", { class: "banner", hidden: true });
    this.filters = h("form", { class: "filters", hidden: true, onsubmit: (event) => event.preventDefault() });
    this.selection = h("span", { class: "quiet" });
    this.surer = h("span", { class: "quiet wide-only whole" });
    this.forecast = h("div", { class: "row forecast" });
    this.definition = h("div", { class: "row definition", hidden: true });
    const fire = (name) => () => this.dispatchEvent(new Event(name));
    this.filterButton = h("button", { "aria-expanded": "false", onclick: () => this.toggleFilters() }, "Filters");
    const deciding = readOnly
      ? []
      : [
          h("button", { class: "answer yes", title: "Everything undecided on screen (Shift + A)", onclick: fire("screenYes") }, "✓ Yes to all on screen"),
          h("button", { class: "answer no", title: "Everything undecided on screen (Shift + X)", onclick: fire("screenNo") }, "✗ No to all on screen"),
          (this.bulk = h("button", { id: "bulk", onclick: fire("bulk") }, "Accept all above 0.9…")),
        ];
    this.element = h(
      "div",
      { class: "toolbar" },
      h("div", { class: "row count-row" }, this.count, h("div", { class: "grow" }), this.surer, readOnly ? null : h("button", { id: "tag-menu", title: "Rename, merge, delete, define this tag", "aria-haspopup": "dialog", onclick: fire("tagMenu") }, "Tag…"), this.filterButton),
      this.definition,
      this.forecast,
      deciding.length ? h("div", { class: "row" }, ...deciding, h("div", { class: "grow" }), this.selection) : null,
      this.filters,
      this.banner,
    );
    this.drawFilters(tags);
  }

  /** The tags to filter by: some were added or are gone. */
  tags(tags) {
    const options = tags.map(({ name }) => h("option", { value: name }, name));
    this.fields.with.replaceChildren(h("option", { value: "" }, "any tag"), ...options);
  }

  drawFilters(tags) {
    const field = (key, text, element) => {
      element.addEventListener("change", () => this.place.set({ [key]: element.value }));
      this.fields[key] = element;
      return h("label", {}, `${text} `, element);
    };
    const options = (pairs) => pairs.map(([value, text]) => h("option", { value }, text));
    const number = () => h("input", { type: "number", min: "0", max: "1", step: "0.05", placeholder: "auto" });
    this.fields = {};
    this.filters.append(
      field("status", "Show", h("select", {}, ...options(STATUSES))),
      field("lowest", "Minimum probability", number()),
      field("highest", "to", number()),
      field("text", "File name contains", h("input", { type: "search" })),
      field("with", "Known to have", h("select", {}, h("option", { value: "" }, "any tag"), ...options(tags.map((t) => [t.name, t.name])))),
      field("reviewer", "Decided by", h("input", { type: "search" })),
      field("stacks", "Nearly identical images", h("select", {}, ...options([["1", "as stacks"], ["0", "individually"]]))),
      h("button", { type: "button", onclick: () => this.place.set(this.place.withoutFilters()) }, "Clear filters"),
    );
  }

  toggleFilters(open = this.filters.hidden) {
    this.filters.hidden = !open;
    this.filterButton.setAttribute("aria-expanded", String(open));
  }

  /** The filters as they stand in the address. */
  update() {
    for (const [key, element] of Object.entries(this.fields)) element.value = this.place.get(key);
    const { filtered } = this.place;
    this.filterButton.classList.toggle("on", filtered > 0);
    this.filterButton.textContent = filtered ? `Filters (${filtered})` : "Filters";
    if (this.bulk) this.bulk.hidden = this.place.get("queue") !== "missing" || this.place.get("status") !== "open";
  }

  show(about, tag) {
    const { images, out_of: outOf, stacks_in_all: stacks, summary } = about;
    const inStacks = stacks < images ? ` in ${plural(stacks, "stack")}` : "";
    const rest = outOf > images ? ` of ${outOf.toLocaleString("en")}` : "";
    this.count.replaceChildren(
      h("strong", { dir: "auto" }, tag),
      ` ${images.toLocaleString("en")}${rest} shown${inStacks}`,
      h("span", { class: "quiet wide-only" }, `, ${plural(summary.known, "image")} known`),
    );
    this.count.append(...this.range(rest));
    this.showEstimate(about.estimate);
    this.showForecast(about.forecast);
    this.showDefinition(summary);
  }

  /** Is it enough? What the next answers will find, and how many are probably still missing. */
  showForecast({ answers, found, missing, enough, threshold, promised }) {
    this.forecast.hidden = this.place.get("queue") !== "missing";
    const own = threshold === null ? "" : ` Its own threshold is ${probability(threshold)}, promising ${percent(promised)} right.`;
    this.forecast.replaceChildren(
      h("span", {}, `The next ${answers} answers find about `, h("strong", {}, `${Math.round(found)} more`), `; still missing ${aboutMissing(missing)}.${own}`),
      enough ? h("strong", { class: "enough", title: "by the upper end of the 95 % interval of what is missing" }, " ✓ Enough: at most a tenth is missing") : "",
    );
  }

  showDefinition({ description, pinned }) {
    this.definition.hidden = !description && !pinned.length;
    this.definition.replaceChildren(
      h("span", { class: "quiet", dir: "auto" }, description),
      ...pinned.map((image) => h("span", { class: "pinned" }, picture(image, "Pinned example"))),
    );
  }

  /** A link to the rest of the queue, or back to what it is about. */
  range(rest) {
    const [queue, lowest] = [this.place.get("queue"), this.place.get("lowest")];
    const link = (text, value) => [h("button", { class: "link", onclick: () => this.place.set({ lowest: value }) }, text)];
    if (!["missing", "doubtful"].includes(queue) || this.place.get("status") !== "open") return [];
    if (lowest === "0") return link(queue === "doubtful" ? "show only doubtful ones" : "show only likely ones", "");
    if (!rest || lowest !== "") return [];
    return link(queue === "doubtful" ? "show all given ones" : "show less likely ones too", "0");
  }

  showEstimate(estimate) {
    this.banner.hidden = !estimate;
    if (!estimate) return;
    const { seen, right, share, interval, enough, still_needed: more, population, unsure } = estimate;
    const parts = [];
    if (!population) parts.push("The model has no suggestions for this tag, so there is nothing to sample.");
    else if (!seen) {
      parts.push(`A random sample of the ${population.toLocaleString("en")} suggestions, in random order. Answer them in order, without skipping any.`);
    } else {
      const [low, high] = interval;
      parts.push(
        h("strong", {}, `About ${percent(share)} of the ${population.toLocaleString("en")} suggestions are right`),
        ` (95 % interval ${Math.round(100 * low)}–${percent(high)}): ${right} of ${seen} seen` + (unsure ? `, ${unsure} unsure excluded` : "") + ". ",
        enough ? h("strong", { class: "enough" }, "✓ The sample is large enough.") : `About ${more} more for ± 5 points.`,
      );
    }
    this.banner.replaceChildren(...parts);
  }

  /** How much of what comes next is expected to be right, and where more is. */
  showSurer(tag, surest) {
    this.surer.hidden = this.place.get("queue") !== "missing" || this.place.get("status") !== "open";
    this.surer.replaceChildren(`next ones ≈ ${percent(tag.next)} right`);
    if (surest.name === tag.name || surest.next < tag.next + 0.05) return;
    const go = () => this.dispatchEvent(new Event("surer"));
    this.surer.append("; surer: ", h("button", { class: "link", onclick: go }, `${surest.name}, ${percent(surest.next)}`));
  }

  showSelection(number) {
    this.selection.textContent = number ? `${number} selected` : "";
  }
}

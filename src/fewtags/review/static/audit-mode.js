// An audit: one label of one image at a time, across all tags. The answers say how complete the tags are.

import { api, large } from "./api.js";
import { ANSWERS, h } from "./dom.js";
import { picture } from "./grid.js";

const HINTS = { 1: "a", [-1]: "x", 0: "u" };

export class AuditMode extends EventTarget {
  constructor(decisions, { readOnly }) {
    super();
    this.decisions = decisions;
    this.readOnly = readOnly;
    this.open = []; // questions that this window has not answered
    this.answers = 0; // that were given here: outdates what was asked for before
    this.progress = h("div", { class: "audit-progress", role: "status" });
    this.question = h("div", { class: "audit-question" });
    this.estimate = h("div", { class: "banner audit-estimate" });
    this.element = h("div", { class: "audit-mode", tabindex: "-1" }, this.progress, this.question, this.estimate);
  }

  async load() {
    const { answers } = this;
    const about = await api.audit();
    this.about = about;
    if (answers === this.answers) {
      this.open = about.questions;
      this.done = about.done;
      for (const { tag, ...label } of this.open) this.decisions.put(tag, label);
      this.draw();
    }
    this.drawEstimate();
    if (!about.wave && !this.readOnly) await this.more();
  }

  /** What goes wrong is said on the page. */
  async reload(load = () => this.load()) {
    try {
      await load();
    } catch (error) {
      this.dispatchEvent(new CustomEvent("failed", { detail: { error, others: [] } }));
    }
  }

  /** A new wave of questions. */
  async more() {
    const { chosen } = await api.newWave();
    if (chosen) await this.load();
    else this.question.replaceChildren(h("p", {}, "There is nothing left to ask about."));
  }

  /** Answer the question on screen and show the next one; `decide` saves. */
  async answer(label, decide) {
    const question = this.readOnly ? null : this.open.shift();
    if (!question) return;
    this.answers++;
    this.done++;
    this.draw();
    await decide([{ image: question.image, tag: question.tag, label }]);
    if (!this.decisions.saving.size) await this.reload();
  }

  draw() {
    const [now, next] = this.open;
    this.progress.textContent = this.about.wave ? `${Math.min(this.done + 1, this.about.size)} of ${this.about.size}` : "";
    if (next) new Image().src = large(next.image); // it is there when it is asked about
    if (!now) return this.drawEnd();
    const buttons = [1, -1, 0].map((label) =>
      h(
        "button",
        {
          class: `answer ${{ 1: "yes", [-1]: "no", 0: "unsure" }[label]}`,
          disabled: this.readOnly,
          onclick: () => this.dispatchEvent(new CustomEvent("answer", { detail: { label } })),
        },
        `${ANSWERS[label].sign} ${ANSWERS[label].word} (${HINTS[label]})`,
      ),
    );
    this.question.replaceChildren(
      h("h2", {}, "Does it show: ", h("strong", { class: "audit-tag" }, now.tag), "?"),
      h("div", { class: "big-picture", "data-image": now.image }, picture(now.image, now.name, { big: true })),
      h("p", { class: "quiet" }, now.name),
      h("div", { class: "answers" }, ...buttons),
    );
  }

  drawEnd() {
    if (!this.about.wave) return this.question.replaceChildren(h("p", {}, this.readOnly ? "Read-only: no questions were asked yet." : "Choosing questions…"));
    this.progress.textContent = `${this.about.size} of ${this.about.size}`;
    const again = this.readOnly ? null : h("button", { class: "audit-more", onclick: () => this.reload(() => this.more()) }, "Ask another wave");
    this.question.replaceChildren(h("p", {}, "✓ All questions of this wave are answered."), again ?? "");
  }

  drawEstimate() {
    const { words, answers, design, gap } = this.about;
    const checked = answers ? `${answers} audited labels: ` : "Not audited yet: ";
    const parts = [h("strong", {}, checked + words + ".")];
    if (design) {
      const [value, low, high] = design.map((number) => Math.round(number).toLocaleString("en"));
      parts.push(` By the answers alone: about ${value} missing (${low} to ${high}). ${gap}`);
    }
    this.estimate.replaceChildren(...parts);
  }
}

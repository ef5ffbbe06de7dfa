// The review page: connects its parts.

import { api } from "./api.js";
import { ANSWERS, announce, byId, clearNotice, h, notice, openDialog, plural, toast } from "./dom.js";
import { AuditMode } from "./audit-mode.js";
import { Decisions } from "./decisions.js";
import { openBulk, openSettings, openStack } from "./dialogs.js";
import { Evidence } from "./evidence.js";
import { Grid } from "./grid.js";
import { ImageMode } from "./image-mode.js";
import { isTyping, Keys } from "./keys.js";
import { Place } from "./place.js";
import { Queue } from "./queue.js";
import { TagList } from "./tag-list.js";
import { openHits, openNewTag, openReviewed, openTagMenu } from "./tags.js";
import { Toolbar } from "./toolbar.js";

const QUEUES = [
  ["audit", "Audit", "A few questions across all tags, whose answers say how complete the tags are"],
  ["missing", "Suggested missing", "Unlabelled tags that the model predicts, most certain first"],
  ["doubtful", "Doubtful", "Given tags that the picture speaks against: it looks less like them than a random one"],
  ["random", "Random", "Suggestions in random order, for an unbiased estimate of how many are right"],
  ["uncertain", "Least certain", "Where an answer teaches the model most"],
  ["disputed", "Disputed", "Where two reviewers disagree: a third decides"],
];
const WORDS = {
  doubtful: {
    1: ["Keep", "The tag is right (a)"],
    [-1]: ["Remove", "The tag is wrong: known to be absent (x)"],
    0: ["Unsure", "Cannot tell: it becomes unknown (u)"],
  },
  other: {
    1: ["Yes", "The image has the tag (a)"],
    [-1]: ["No", "It does not: known to be absent (x)"],
    0: ["Unsure", "It stays unknown and is not asked again (u)"],
  },
};
const POLL_EVERY = 4000; // milliseconds

const settings = {
  usual: { theme: "auto", "move-on": "1", "hide-chances": "0", panel: "1" },
  get: (name) => localStorage.getItem(name) ?? settings.usual[name],
  set(name, value) {
    localStorage.setItem(name, value);
    settings.apply();
  },
  apply() {
    const theme = settings.get("theme");
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    document.body.classList.toggle("hide-chances", settings.get("hide-chances") === "1");
  },
};

class App {
  constructor(session) {
    this.session = session;
    this.place = new Place();
    this.keys = new Keys();
    this.decisions = new Decisions(session);
    this.tagList = new TagList(session.tags, this.place);
    const options = { heatMaps: session.heat_maps, readOnly: session.read_only };
    this.grid = new Grid(this.decisions);
    this.evidence = new Evidence(byId("evidence"), this.decisions, options);
    this.imageMode = new ImageMode(this.decisions, options);
    this.auditMode = new AuditMode(this.decisions, options);
    this.toolbar = new Toolbar(this.place, session.tags, session.read_only);
    this.tagMode = h("div", { class: "tag-mode" }, this.toolbar.element, this.grid.element);
    this.empty = h("div", { class: "nothing", hidden: true });
    this.tagMode.append(this.empty);
    if (!this.place.get("tag")) this.place.set({ tag: this.tagList.names()[0] }, { quiet: true });
    this.drawHead();
    this.listen();
    document.body.classList.toggle("read-only", session.read_only);
    this.openPanel(innerWidth > 1100 && settings.get("panel") === "1");
  }

  // --- parts of the page ---

  drawHead() {
    const { session, place } = this;
    byId("run").replaceChildren(h("strong", {}, "fewtags"), h("span", { class: "quiet", title: session.folder }, ` ${session.run}`));
    const modes = [["tag", "Tag"], ["image", "Image"]];
    byId("modes").replaceChildren(...modes.map(([value, text]) => h("button", { "data-mode": value, onclick: () => this.setMode(value) }, text)));
    const go = (queue) => place.set({ queue, lowest: "", highest: "" }, { step: true });
    byId("queues").replaceChildren(
      ...QUEUES.map(([value, text, title]) => h("button", { "data-queue": value, title, onclick: () => go(value) }, text)),
    );
    byId("undo").hidden = session.read_only;
    if (session.read_only) byId("saved").textContent = "Read-only";
    if (session.unreadable) toast(`${plural(session.unreadable, "image")} cannot be read and will not be shown.`);
  }

  /** Pressed buttons, title, what is counted as saved. */
  mark() {
    for (const button of byId("modes").children) button.setAttribute("aria-pressed", button.dataset.mode === this.place.get("mode"));
    for (const button of byId("queues").children) button.setAttribute("aria-pressed", button.dataset.queue === this.place.get("queue"));
    document.title = `${this.place.get("tag")} · ${this.session.run} · fewtags review`;
    if (this.session.read_only) return;
    const { saving, decided } = this.decisions;
    byId("saved").textContent = saving.size ? `Saving ${saving.size}…` : decided ? `✓ ${decided.toLocaleString("en")} saved` : "✓ Saved";
    byId("undo").disabled = !this.decisions.canUndo;
    this.sayUndo();
  }

  /** What undo would take back, on its button. */
  async sayUndo() {
    const step = this.decisions.nextUndo;
    if (step === this.saidUndo || this.session.read_only) return;
    this.saidUndo = step;
    const found = step ? await api.wouldUndo(step).catch(() => null) : null;
    if (step !== this.saidUndo) return;
    byId("undo").title = found && (found.words || found.labels.length) ? `Undo (z): ${undoWords(found)}` : "Undo (z)";
  }

  listen() {
    this.place.addEventListener("change", () => this.show());
    this.tagList.addEventListener("choose", ({ detail }) => this.chooseTag(detail));
    this.tagList.addEventListener("leave", () => this.focusWork());
    this.grid.addEventListener("focused", () => this.showEvidence());
    this.grid.addEventListener("selection", () => this.toolbar.showSelection(this.grid.selected.size));
    this.grid.addEventListener("answer", ({ detail }) => this.answerPlace(detail.place, detail.label));
    this.grid.addEventListener("expand", ({ detail }) => this.expand(detail.place));
    this.grid.addEventListener("open", ({ detail }) => this.openImage(detail.place));
    this.evidence.addEventListener("answer", ({ detail }) => this.answer(detail.label));
    this.evidence.addEventListener("like", () => this.moreLike());
    this.imageMode.addEventListener("answer", ({ detail }) => this.decide([detail]));
    this.auditMode.addEventListener("failed", ({ detail }) => this.onFailed(detail));
    this.auditMode.addEventListener("answer", ({ detail }) => this.answer(detail.label));
    this.toolbar.addEventListener("screenYes", () => this.answerScreen(1));
    this.toolbar.addEventListener("screenNo", () => this.answerScreen(-1));
    this.toolbar.addEventListener("bulk", () => this.bulk());
    this.toolbar.addEventListener("tagMenu", () => this.tagMenu());
    this.toolbar.addEventListener("surer", () => this.chooseTag(this.tagList.surest().name));
    this.decisions.addEventListener("change", ({ detail }) => this.onChange(detail.tags));
    this.decisions.addEventListener("failed", ({ detail }) => this.onFailed(detail));
    this.decisions.addEventListener("news", ({ detail }) => this.onNews(detail.labels));
    this.decisions.addEventListener("tags", ({ detail }) => this.onTagNews(detail.tags));
    byId("undo").addEventListener("click", () => this.undo());
    byId("new-tag").hidden = this.session.read_only;
    byId("new-tag").addEventListener("click", () => this.newTag());
    byId("reviewed").addEventListener("click", () => this.reviewed());
    byId("find").addEventListener("keydown", (event) => this.onFindKey(event));
    for (const name of ["dragover", "drop"]) addEventListener(name, (event) => this.onDrop(event));
    byId("panel").addEventListener("click", () => this.togglePanel());
    byId("help").addEventListener("click", () => this.help());
    byId("settings").addEventListener("click", () => openSettings(settings));
    byId("open-tags").addEventListener("click", () => this.openTags());
    document.addEventListener("keydown", (event) => this.onKey(event));
    setInterval(() => this.decisions.poll(), POLL_EVERY);
    addEventListener("focus", () => this.decisions.poll());
    document.addEventListener("visibilitychange", () => this.decisions.poll());
  }

  // --- navigation ---

  async show() {
    this.openTags(false);
    this.toolbar.update();
    this.tagList.draw();
    this.mark();
    document.body.classList.toggle("audit", this.auditing);
    if (this.auditing) return this.showAudit();
    const wanted = JSON.stringify(this.place.view());
    if (wanted !== this.shownView) {
      this.shownView = wanted;
      await this.openQueue();
      if (wanted !== JSON.stringify(this.place.view())) return; // the reviewer went on meanwhile, and is shown that
    }
    const image = this.place.get("mode") === "image";
    document.body.classList.toggle("image", image);
    byId("work").replaceChildren(image ? this.imageMode.element : this.tagMode);
    if (image) await this.showImage();
    else {
      this.grid.draw(true);
      this.showEvidence();
    }
  }

  get auditing() {
    return this.place.get("queue") === "audit";
  }

  async showAudit() {
    document.body.classList.remove("image");
    byId("work").replaceChildren(this.auditMode.element);
    this.evidence.clear("");
    try {
      await this.auditMode.load();
    } catch (error) {
      this.onFailed({ error, others: [], again: () => this.show() });
    }
  }

  openQueue() {
    this.opened = this.openView();
    return this.opened;
  }

  async openView() {
    const view = this.place.view();
    const queue = new Queue(this.decisions, view.tag);
    this.opening = queue; // of two tags chosen quickly, the one chosen last is shown, whichever is answered first
    queue.addEventListener("about", () => queue === this.queue && this.onAbout());
    queue.addEventListener("failed", ({ detail }) => queue === this.opening && this.onFailed({ error: detail.error, others: [] }));
    try {
      await this.decisions.queue; // answers on their way to the server: their images are not asked about again
      await queue.open(view);
      await queue.want(0, 60);
    } catch (error) {
      if (queue !== this.opening) return;
      this.shownView = null;
      return this.onFailed({ error, others: [], again: () => this.show() });
    }
    if (queue !== this.opening) return;
    this.queue = queue;
    this.grid.show(queue);
    this.toolbar.showSelection(0);
    this.onAbout();
  }

  /** The server told something new about the queue. */
  onAbout() {
    this.toolbar.show(this.queue.about, this.queue.tag);
    this.tagList.update(this.queue.about.summary);
    this.toolbar.showSurer(this.queue.about.summary, this.tagList.surest());
    this.grid.draw();
    const nothing = this.queue.length === 0;
    this.empty.hidden = !nothing;
    this.grid.element.hidden = nothing;
    if (!nothing) return;
    const filtered = this.place.filtered;
    const text = filtered ? "No images match these filters." : "This queue is empty.";
    const clear = h("button", { onclick: () => this.place.set(this.place.withoutFilters()) }, "Clear filters");
    this.empty.replaceChildren(h("p", {}, text), filtered ? clear : h("button", { onclick: () => this.nextTag() }, "Next tag (n)"));
    this.evidence.clear("");
  }

  chooseTag(tag) {
    this.place.set({ tag, image: "", ...(this.auditing ? { queue: "missing" } : {}) }, { step: true });
    this.focusWork();
  }

  nextTag() {
    const next = this.tagList.after(this.place.get("tag"));
    if (next) this.chooseTag(next);
  }

  setMode(mode) {
    if (mode === this.place.get("mode") || this.auditing) return;
    if (mode === "image") this.openImage(this.grid.focused);
    else this.place.set({ mode: "tag", image: "" }, { step: true });
    this.focusWork();
  }

  openImage(place) {
    const stack = this.queue.stacks.get(place);
    if (!stack) return;
    this.grid.focused = place;
    this.place.set({ mode: "image", image: String(stack.images[0].image) }, { step: this.place.get("mode") === "tag" });
  }

  async showImage() {
    let image = Number(this.place.get("image"));
    if (this.place.get("image") === "") {
      const stack = this.queue?.stacks.get(this.grid.focused);
      if (!stack) return byId("work").replaceChildren(h("div", { class: "nothing" }, h("p", {}, "This queue is empty.")));
      image = stack.images[0].image;
      this.place.set({ image: String(image) }, { quiet: true });
    }
    const next = this.queue?.stacks.get(this.grid.focused + 1)?.images[0].image ?? null;
    const position = this.queue?.length ? `${this.grid.focused + 1} of ${this.queue.length} for “${this.place.get("tag")}”` : "";
    byId("evidence").replaceChildren(this.imageMode.panel);
    this.openPanel(true);
    try {
      await this.imageMode.show(image, { tag: this.place.get("tag"), position, next });
      this.imageMode.focusCurrent();
    } catch (error) {
      this.onFailed({ error, others: [] });
    }
  }

  async moveImage(step) {
    const place = this.grid.focused + step;
    if (!this.queue || place < 0 || place >= this.queue.length) return;
    this.queue.seen = Math.max(this.queue.seen, place + 1);
    await this.queue.want(place, place + 20);
    this.openImage(place);
  }

  showEvidence() {
    if (this.place.get("mode") !== "tag") return;
    const stack = this.queue?.stacks.get(this.grid.focused);
    if (!stack) return;
    if (stack !== this.evidence.stack) this.evidence.show(stack, this.queue.tag, WORDS[this.place.get("queue")] ?? WORDS.other);
  }

  focusWork() {
    if (this.auditing) return this.auditMode.element.focus({ preventScroll: true });
    if (this.place.get("mode") === "image") this.imageMode.focusCurrent();
    else (this.grid.tiles.get(this.grid.focused) ?? byId("work")).focus({ preventScroll: true });
  }

  // --- answers ---

  answer(label) {
    if (this.auditing) return this.auditMode.answer(label, (answers) => this.decide(answers));
    if (this.place.get("mode") === "image") return this.imageMode.answer(label);
    const stacks = this.grid.targets();
    return this.answerStacks(stacks, label);
  }

  answerPlace(place, label) {
    const inSelection = this.grid.selected.has(place);
    this.grid.focusIn(place);
    return inSelection ? this.answer(label) : this.answerStacks([this.queue.stacks.get(place)], label, true);
  }

  answerStacks(stacks, label, byMouse = false) {
    const { tag } = this.queue;
    return this.decide(stacks.flatMap((stack) => stack.images.map(({ image }) => ({ image, tag, label }))), undefined, byMouse);
  }

  answerScreen(label) {
    const stacks = this.grid.visiblePlaces().map((place) => this.queue.stacks.get(place)).filter(Boolean);
    const { tag } = this.queue;
    const answers = stacks.flatMap((stack) => stack.images.map(({ image }) => ({ image, tag, label })));
    // A recent answer may not be on disk yet, but it counts as decided.
    const open = ({ image }) => !this.decisions.of(tag, image)?.decided && !this.decisions.isSaving(tag, image);
    return this.decide(answers.filter(open));
  }

  async decide(answers, queue = this.place.get("queue"), byMouse = false) {
    if (this.session.read_only || !answers.length) return;
    this.grid.selectPlaces([]);
    const saved = this.decisions.decide(answers, queue);
    // At once: what is pressed next is about the next image, and never overwrites this answer.
    if (settings.get("move-on") === "1" && !this.auditing && !byMouse) this.moveOn();
    if (!(await saved)) return;
    const [{ label, tag }] = answers;
    announce(`${ANSWERS[label].word} for ${tag}, ${plural(answers.length, "image")}, saved.`);
    if (answers.length > 1) {
      toast(`${ANSWERS[label].sign} ${ANSWERS[label].word} for “${tag}”: ${plural(answers.length, "image")}`, {
        action: "Undo",
        onAction: () => this.undo(),
      });
    }
  }

  /** To the next undecided stack. */
  moveOn() {
    if (this.place.get("mode") !== "tag") return;
    const { tag } = this.queue;
    for (let place = this.grid.focused + 1; place < this.queue.length; place++) {
      const first = this.queue.stacks.get(place)?.images[0].image;
      const open = first === undefined || !(this.decisions.of(tag, first)?.decided || this.decisions.isSaving(tag, first));
      if (open) return this.grid.go(place);
    }
  }

  async undo() {
    if (this.session.read_only) return;
    await Promise.all([this.opened, this.refreshing]); // they ask by a name that undo may take away
    const done = await this.decisions.undo();
    if (this.auditing) await this.auditMode.reload();
    if (!done || (!done.labels.length && !done.words)) return this.decisions.canUndo || toast("Nothing to undo.");
    toast(`↶ Undone: ${undoWords(done)}`);
    announce(`Undone: ${undoWords(done)}.`);
    this.mark();
    if (done.words) return this.reloadTags(done.tag);
    this.goTo(done.labels[0]);
  }

  /** Where a decision was: its tag and, if it is on screen, its image. */
  async goTo({ tag, image }) {
    if (this.auditing || this.place.get("mode") !== "tag") return;
    if (tag !== this.place.get("tag")) {
      this.place.set({ tag, image: "" }, { step: true, quiet: true });
      await this.show();
    }
    const [place] = [...this.queue.stacks].find(([, stack]) => stack.images.some((one) => one.image === image)) ?? [];
    if (place !== undefined) this.grid.go(place);
  }

  // --- tags and search ---

  /** The images of the selection, or the one in focus. */
  chosen() {
    if (this.place.get("mode") === "image") return [Number(this.place.get("image"))];
    return (this.queue?.length ? this.grid.targets() : []).map((stack) => stack.images[0].image);
  }

  newTag(examples = this.grid.selected.size ? this.chosen() : [], text = "") {
    if (this.session.read_only) return;
    const done = (step) => {
      this.decisions.steps.push(step.step);
      this.decisions.take(step);
      return this.reloadTags(step.tag);
    };
    openNewTag({ examples, text, done });
  }

  tagMenu() {
    const tag = this.tagList.tags.get(this.place.get("tag"));
    if (!tag || this.session.read_only) return;
    const change = async (body) => {
      const done = await api.changeTag(body);
      this.decisions.steps.push(done.step);
      this.decisions.take(done);
      toast(`Done: ${done.words}`, { action: "Undo", onAction: () => this.undo() });
      this.mark();
      await this.reloadTags(done.tag);
    };
    openTagMenu(tag, { names: [...this.tagList.tags.keys()], selected: this.grid.selected.size ? this.chosen() : [], change });
  }

  /** The tags as they are now, at one of them. */
  async reloadTags(go) {
    const session = await api.session();
    this.decisions.lastStep = session.last_step;
    this.decisions.decided = session.decided;
    this.takeTags(session.tags, go);
  }

  takeTags(tags, go) {
    const shown = this.tagList.tags.get(this.place.get("tag"))?.column; // it may have another name now
    this.tagList.replace(tags);
    const wanted = tags.find(({ name }) => name === go) ?? tags.find(({ column }) => column === shown);
    this.toolbar.tags(tags);
    this.shownView = null;
    this.place.set({ tag: wanted?.name ?? this.tagList.names()[0], queue: this.auditing ? "missing" : this.place.get("queue") }, { quiet: true });
    this.show().then(() => this.focusWork());
  }

  async find(title, asked, text = "") {
    try {
      const found = await asked;
      clearNotice();
      byId("find").value = text; // an older phrase is not what is shown
      openHits(title, found, {
        readOnly: this.session.read_only,
        tag: this.place.get("tag"),
        newTag: (images) => this.newTag(images, text),
        like: (images) => this.moreLike(images),
        yes: (images) => this.sayYes(images),
      });
    } catch (error) {
      notice(error.message);
    }
  }

  moreLike(images = this.chosen()) {
    if (images.length) this.find(`More like ${plural(images.length, "image")}`, api.like(images));
  }

  async sayYes(images) {
    const tag = this.place.get("tag");
    for (const image of images) {
      const found = (await api.image(image)).tags.find((one) => one.name === tag);
      this.decisions.put(tag, { ...found, image });
    }
    return this.decide(images.map((image) => ({ image, tag, label: 1 })), "search", true);
  }

  onFindKey(event) {
    const { value } = event.target;
    if (event.key === "Enter" && value.trim()) this.find(`Search: ${value}`, api.search(value), value);
    else if (event.key === "Escape") this.focusWork();
    else return;
    event.preventDefault();
  }

  onDrop(event) {
    const [file] = event.dataTransfer?.files ?? [];
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    if (event.type === "drop" && file) this.find(`Like ${file.name}`, api.likePicture(file));
  }

  async reviewed() {
    try {
      openReviewed(await api.reviewed());
    } catch (error) {
      notice(error.message);
    }
  }

  bulk() {
    const accept = (answers) => {
      const { tag } = this.place.values;
      for (const { image, version } of answers) {
        if (!this.decisions.of(tag, image)) this.decisions.put(tag, { image, version, label: 0, decided: false });
      }
      return this.decide(answers.map(({ image }) => ({ image, tag, label: 1 })), "bulk");
    };
    openBulk(this.place.view(), { accept });
  }

  expand(place) {
    const stack = this.queue?.stacks.get(place);
    if (!stack || stack.images.length < 2) return;
    const { tag } = this.queue;
    this.openedStack = openStack(stack, tag, this.decisions, {
      readOnly: this.session.read_only,
      keys: this.keys,
      answer: (images, label) => this.decide(images.map((image) => ({ image, tag, label }))),
      onclose: () => (this.openedStack = null),
    });
  }

  // --- responses ---

  onChange(tags) {
    this.mark();
    this.grid.markAll();
    this.openedStack?.redraw();
    if (this.place.get("mode") === "image" && this.imageMode.found) this.imageMode.drawGroups();
    if (this.queue && tags.has(this.queue.tag) && !this.decisions.saving.size) this.refreshSoon();
    for (const tag of tags) if (tag !== this.queue?.tag) this.refreshTag();
  }

  /** Re-rank once after several decisions in a row. */
  refreshSoon() {
    if (this.refreshing) {
      this.refreshAgain = true;
      return;
    }
    this.refreshing = this.queue.refresh().finally(() => {
      this.refreshing = null;
      if (this.refreshAgain) {
        this.refreshAgain = false;
        this.refreshSoon();
      }
    });
  }

  /** Counts of other tags changed: image mode decides about any. */
  refreshTag() {
    clearTimeout(this.tagTimer);
    this.tagTimer = setTimeout(async () => {
      const session = await api.session().catch(() => null);
      for (const tag of session?.tags ?? []) this.tagList.update(tag);
    }, 300);
  }

  onFailed({ error, again, others }) {
    if (error.status === 409) {
      const [other] = others;
      const what = other.decided ? `${ANSWERS[other.label].word}, by ${other.reviewer || "somebody"}` : "undone";
      const more = others.length > 1 ? ` and ${others.length - 1} more` : "";
      notice(
        `Not saved: “${other.tag}” of ${other.name}${more} was changed in another window (now: ${what}). Check again.`,
        again ? [["Save mine anyway", again]] : [],
      );
    } else if (error.status === 401) {
      notice("The server was restarted. Open the address it printed; all saved decisions are there.");
    } else if (error.status === 0) {
      const lost = again ? " Your last decision was not saved." : "";
      this.serverGone = true;
      notice(error.message + lost, [["Try again", again ?? (() => this.decisions.poll())]]);
    } else notice(error.message, again ? [["Try again", again]] : []);
    announce(byId("notice").textContent);
  }

  /** Tags changed, in another window or in this one, which knows then: its queue is not opened again in the middle of answers. */
  onTagNews(tags) {
    const known = this.tagList.tags;
    if (tags.length === known.size && tags.every(({ name, version }) => known.get(name)?.version === version)) return;
    this.takeTags(tags);
  }

  onNews(labels) {
    if (this.serverGone) clearNotice();
    this.serverGone = false;
    const who = [...new Set(labels.map((label) => label.reviewer || "Somebody"))].join(", ");
    toast(`${who} changed ${plural(labels.length, "label")} in another window.`);
    this.refreshTag();
  }

  // --- keys ---

  onKey(event) {
    if (isTyping(event)) return;
    const image = this.auditing || this.place.get("mode") === "image";
    const handled = this.auditing ? this.onAuditKey(event) : this.onMoveKey(event, image) || this.onAnswerKey(event, image) || this.onOtherKey(event, image);
    if (handled) event.preventDefault();
  }

  /** Answers, undo and help; the rest is about other queues. */
  onAuditKey(event) {
    const others = ["undo", "help", "search"].includes(this.keys.action(event)) || event.key.toLowerCase() === "z";
    const digit = /^[1-9]$/.test(event.key);
    return (!digit && this.onAnswerKey(event, false)) || (others && this.onOtherKey(event, true));
  }

  onMoveKey(event, image) {
    const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (arrows && image) {
      if (arrows[1]) this.moveImage(arrows[1]);
      else this.imageMode.moveTag(arrows[0]);
    } else if (arrows) this.grid.move(...arrows, event.shiftKey);
    else if (image) return false;
    else if (event.key === "Home") this.grid.go(0, event.shiftKey);
    else if (event.key === "End") this.grid.go(this.queue.length - 1, event.shiftKey);
    else if (event.key === "PageDown") this.grid.page(1, event.shiftKey);
    else if (event.key === "PageUp") this.grid.page(-1, event.shiftKey);
    else if (event.key === "Escape") this.grid.selectPlaces([]);
    else if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) this.grid.selectPlaces(this.grid.visiblePlaces());
    else return false;
    return true;
  }

  onAnswerKey(event, image) {
    const onButton = event.target.matches("button, a, summary");
    const label = { yes: 1, no: -1, unsure: 0 }[this.keys.action(event)];
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (label !== undefined) this.answer(label);
    else if (event.key === " " && !onButton) this.answer(0);
    else if (event.key === "Enter" && !onButton) this.answer(1);
    else if (image && plain && /^[1-9]$/.test(event.key)) this.imageMode.toggleSuggestion(Number(event.key));
    else return false;
    return true;
  }

  onOtherKey(event, image) {
    const undo = event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey);
    const acts = {
      undo: () => this.undo(),
      screenYes: () => image || this.answerScreen(1),
      screenNo: () => image || this.answerScreen(-1),
      mode: () => this.setMode(image ? "tag" : "image"),
      expand: () => image || this.expand(this.grid.focused),
      heat: () => (image ? this.imageMode.toggleHeat() : this.evidence.toggleHeat()),
      panel: () => this.togglePanel(),
      rerank: () => this.rerank(),
      nextTag: () => this.nextTag(),
      smaller: () => this.grid.resize(-1),
      larger: () => this.grid.resize(1),
      search: () => (this.openTags(true), byId("tag-search").focus()),
      find: () => (this.openTags(true), byId("find").focus()),
      like: () => this.moreLike(),
      newTag: () => this.newTag(),
      help: () => this.help(),
    };
    const act = acts[undo ? "undo" : this.keys.action(event)];
    if (act) act();
    return Boolean(act);
  }

  async rerank() {
    await this.openQueue();
    this.focusWork();
    announce("Re-ranked.");
  }

  help() {
    openDialog("Keys", this.keys.list(), { wide: true });
  }

  // --- panels ---

  openTags(open = !document.body.classList.contains("tags-open")) {
    document.body.classList.toggle("tags-open", open);
    byId("open-tags").setAttribute("aria-expanded", String(open));
  }

  togglePanel() {
    const open = document.body.classList.contains("no-panel");
    settings.set("panel", open ? "1" : "0");
    this.openPanel(open);
  }

  openPanel(open) {
    document.body.classList.toggle("no-panel", !open);
    byId("panel").setAttribute("aria-pressed", String(open));
  }
}

/** What a step was, in words. */
function undoWords({ words, labels }) {
  if (words) return words;
  const [first] = labels;
  const tags = [...new Set(labels.map((label) => label.tag))].join(", ");
  return labels.length === 1 ? `${tags}, ${first.name}` : `${tags}, ${plural(labels.length, "image")}`;
}

settings.apply();
try {
  const app = new App(await api.session());
  await app.show();
  app.focusWork();
  document.body.classList.add("ready");
} catch (error) {
  notice(error.message);
  throw error;
}

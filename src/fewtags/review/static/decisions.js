// Decisions: the labels as this window knows them, saving, undo, and changes from other windows.
//
// A decision is shown as saved only after the server has responded, which it does once it is on disk. Decisions
// are sent one at a time, each with the version of the label that this window has seen.

import { api } from "./api.js";

const key = (tag, image) => `${image} ${tag}`;

export class Decisions extends EventTarget {
  constructor(session) {
    super();
    this.labels = new Map(); // key -> {label, version, decided, reviewer, decided_at}
    this.saving = new Set(); // keys in flight
    this.steps = []; // of this window, for undo
    this.mine = new Set(); // versions written by this window
    this.lastId = session.last_id;
    this.lastStep = session.last_step;
    this.decided = session.decided; // labels, by everybody
    this.queue = Promise.resolve();
    this.polling = false;
  }

  put(tag, label) {
    const known = this.labels.get(key(tag, label.image));
    if (known && known.version > label.version) return; // an outdated response
    this.labels.set(key(tag, label.image), {
      label: label.label,
      version: label.version,
      decided: label.decided,
      reviewer: label.reviewer,
      decided_at: label.decided_at,
    });
  }

  of(tag, image) {
    return this.labels.get(key(tag, image));
  }

  isSaving(tag, image) {
    return this.saving.has(key(tag, image));
  }

  /** Answers [{image, tag, label}] as one step. Resolves with true when they are on the disk. */
  decide(answers, queue) {
    if (!answers.length) return Promise.resolve(false);
    for (const answer of answers) this.saving.add(key(answer.tag, answer.image));
    this.changed(answers);
    this.queue = this.queue.then(() => this.write(answers, queue));
    return this.queue;
  }

  async write(answers, queue) {
    const body = answers.map(({ image, tag, label }) => ({
      image,
      tag,
      label,
      version: this.of(tag, image)?.version ?? 0,
    }));
    try {
      const done = await api.decide(queue, body);
      this.steps.push(done.step);
      this.take(done);
      return true;
    } catch (error) {
      this.failed(error, () => this.decide(answers, queue));
      return false;
    } finally {
      for (const answer of answers) this.saving.delete(key(answer.tag, answer.image));
      this.changed(answers);
    }
  }

  /** Takes back this window's last step; when there is none, the last one in the store. Resolves with what was undone. */
  undo() {
    this.queue = this.queue.then(async () => {
      const step = this.steps.at(-1) ?? this.lastStep;
      if (!step) return null;
      try {
        const done = await api.undo(step);
        this.steps = this.steps.filter((other) => other !== step);
        this.take(done);
        this.changed(done.labels);
        return done;
      } catch (error) {
        if (error.status !== 409) this.steps = this.steps.filter((other) => other !== step);
        this.failed(error);
        return null;
      }
    });
    return this.queue;
  }

  /** The step that undo would take back, if any. */
  get nextUndo() {
    return this.steps.at(-1) ?? this.lastStep;
  }

  get canUndo() {
    return this.steps.length > 0 || Boolean(this.lastStep);
  }

  take(done) {
    this.lastStep = done.last_step;
    this.decided = done.decided;
    for (const label of done.labels) {
      this.mine.add(label.version);
      this.put(label.tag, label);
    }
  }

  failed(error, again) {
    const others = error.status === 409 ? error.body.labels : [];
    for (const label of others) this.put(label.tag, label);
    this.changed(others);
    this.dispatchEvent(new CustomEvent("failed", { detail: { error, again, others } }));
  }

  changed(labels) {
    const tags = new Set(labels.map((label) => label.tag));
    this.dispatchEvent(new CustomEvent("change", { detail: { tags } }));
  }

  /** Ask what other windows and people decided. */
  async poll() {
    if (this.polling || document.hidden) return;
    this.polling = true;
    try {
      const news = await api.changes(this.lastId);
      this.lastId = news.last_id;
      if (news.tags) this.dispatchEvent(new CustomEvent("tags", { detail: { tags: news.tags } }));
      const foreign = news.labels.filter((label) => !this.mine.has(label.version));
      for (const label of news.labels) this.put(label.tag, label);
      if (foreign.length) {
        const tags = new Set(foreign.map((label) => label.tag));
        this.dispatchEvent(new CustomEvent("news", { detail: { labels: foreign, tags } }));
        this.changed(foreign);
      }
    } catch (error) {
      this.dispatchEvent(new CustomEvent("failed", { detail: { error, others: [] } }));
    } finally {
      this.polling = false;
    }
  }
}

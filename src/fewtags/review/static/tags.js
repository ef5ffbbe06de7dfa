// Tags that nobody had: search by a phrase or a picture, "+ tag", and rename, merge, delete, describe, pin.

import { api } from "./api.js";
import { h, openDialog, percent, plural } from "./dom.js";
import { picture } from "./grid.js";

/** A form in a dialog; `send` returns a promise, whose failure is shown in the form. */
function form(title, fields, button, send) {
  const problem = h("p", { class: "problem", role: "alert" });
  const submit = h("button", { class: "primary", type: "submit" }, button);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await send();
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
      submit.disabled = false;
    }
  };
  const content = h("form", { class: "tag-form", onsubmit }, ...fields, problem, h("div", { class: "row buttons" }, submit, cancel));
  const dialog = openDialog(title, content);
  content.querySelector("input, select, textarea")?.focus();
  return dialog;
}

const field = (text, input) => h("label", { class: "field" }, h("span", {}, text), input);

/** "+ tag": a name, and as a start the selected images, a phrase, or nothing but a random screen. */
export function openNewTag({ examples = [], text = "", done }) {
  const name = h("input", { type: "text", value: text, maxlength: "100", required: true, id: "new-tag-name", autocomplete: "off" });
  const phrase = h("input", { type: "checkbox", checked: !examples.length, id: "new-tag-phrase" });
  const start = examples.length ? `It starts from ${plural(examples.length, "selected image")}.` : "Without an example it starts from its name, or at random.";
  form(
    "New tag",
    [field("Name", name), h("p", { class: "quiet" }, start), h("label", { class: "row" }, phrase, " Rank by what the name means, where the model knows the word")],
    "Add tag",
    async () => {
      const added = await api.newTag({ name: name.value, examples, text: phrase.checked ? text || name.value : "" });
      done(added);
    },
  );
}

/** Rename, merge, delete, describe, pin. `change(body)` writes. */
export function openTagMenu(tag, { names, selected, change }) {
  const body = (kind, more) => change({ tag: tag.name, change: kind, version: tag.version, ...more });
  const rename = () => {
    const name = h("input", { type: "text", value: tag.name, maxlength: "100", required: true, autocomplete: "off" });
    form(`Rename “${tag.name}”`, [field("New name", name)], "Rename", () => body("rename", { value: name.value }));
  };
  const merge = () => {
    const others = names.filter((name) => name !== tag.name);
    const into = h("select", {}, ...others.map((name) => h("option", { value: name }, name)));
    const text = "All its images will have the other tag; decisions about both are kept.";
    form(`Merge “${tag.name}” into another tag`, [field("Merge into", into), h("p", { class: "quiet" }, text)], "Merge", () => body("merge", { value: into.value }));
  };
  const describe = () => {
    const text = h("input", { type: "text", value: tag.description, maxlength: "300" });
    form(`What is “${tag.name}”?`, [field("One line for the next reviewer", text)], "Save", () => body("describe", { value: text.value }));
  };
  const remove = () => form(`Delete “${tag.name}”?`, [h("p", {}, "It leaves the list and what is trained from this review. Undo brings it back.")], "Delete", () => body("delete"));
  const pin = () => form(`Pin examples to “${tag.name}”`, [h("p", {}, `${plural(selected.length, "selected image")} will show what is meant.`)], "Pin", () => body("pin", { images: selected }));
  const item = (text, act, disabled = false) => h("button", { class: "menu-item", disabled, onclick: () => (menu.close(), act()) }, text);
  const menu = openDialog(
    `Tag “${tag.name}”`,
    h(
      "div",
      { class: "menu" },
      item("Rename…", rename),
      item("Merge into another tag…", merge, names.length < 2),
      item("Define in one line…", describe),
      item(selected.length ? "Pin the selected images as examples…" : "Pin examples (select up to five images first)", pin, !selected.length || selected.length > 5),
      tag.pinned.length ? item("Unpin its examples", () => body("pin")) : null,
      item("Delete…", remove),
      h("div", { class: "quiet" }, ...tag.history.map((text) => h("div", { dir: "auto" }, text))),
    ),
  );
}

/** Images that a search found, to select: a new tag, more like these, or yes for the current tag. */
export function openHits(title, found, { readOnly, tag, newTag, like, yes }) {
  const chosen = new Set();
  const count = h("span", { class: "quiet" });
  const acts = [];
  const act = (text, run, title) => {
    const button = h("button", { disabled: true, title, onclick: () => (dialog.close(), run([...chosen])) }, text);
    acts.push(button);
    return button;
  };
  const mark = () => {
    count.textContent = chosen.size ? `${chosen.size} selected` : "Click images to select them";
    for (const button of acts) button.disabled = !chosen.size;
  };
  const hit = ({ image, name, similarity }) => {
    const tile = h(
      "button",
      {
        class: "hit",
        "aria-pressed": "false",
        "data-image": image,
        title: name,
        onclick: () => {
          if (!chosen.delete(image)) chosen.add(image);
          tile.setAttribute("aria-pressed", String(chosen.has(image)));
          mark();
        },
      },
      picture(image, name),
      h("span", { class: "chance" }, similarity.toFixed(2)),
    );
    return tile;
  };
  const row = h("div", { class: "row buttons hit-acts" });
  if (!readOnly) row.append(act("+ New tag from these…", newTag), act(`✓ Yes for “${tag}”`, yes));
  row.append(act("More like these", like), count);
  const content = h("div", { class: "search" }, h("p", { class: "quiet" }, found.sentence), row, h("div", { class: "hits" }, ...found.hits.map(hit)));
  const dialog = openDialog(title, content, { wide: true });
  mark();
}

/** What the review changed, tag by tag. */
export function openReviewed(found) {
  const row = (tag) =>
    h("tr", {}, h("th", { scope: "row" }, tag.name), ...[tag.known_before, tag.found, tag.removed, tag.rejected].map((n) => h("td", {}, n.toLocaleString("en"))), h("td", {}, aboutMissing(tag.missing)));
  const heads = ["Tag", "Known before", "Found", "Removed", "Suggestions rejected", "Still missing"];
  const sum = (key) => found.tags.reduce((all, tag) => all + tag[key], 0);
  const known = sum("known_before");
  const more = known ? `, ${percent(sum("found") / known)} more than were known` : "";
  const text = found.tags.length ? `${plural(sum("found"), "tag")} found${more}; ${sum("removed")} removed.` : "Nothing has been decided yet.";
  openDialog(
    "What this review changed",
    h(
      "div",
      { class: "reviewed" },
      h("p", {}, h("strong", {}, text)),
      found.agreement ? h("p", {}, found.agreement) : null,
      found.tags.length ? h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...found.tags.map(row))) : null,
      h("p", { class: "quiet" }, "`fewtags train --reviewed RUN` trains with it, and `fewtags compare` says what it was worth."),
    ),
    { wide: true },
  );
}

export const aboutMissing = ([value, low, high]) =>
  `≈ ${Math.round(value).toLocaleString("en")} (${Math.round(low).toLocaleString("en")} to ${Math.round(high).toLocaleString("en")})`;

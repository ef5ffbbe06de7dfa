// Dialogs: a stack's images, a bulk decision with its preview, settings.

import { api } from "./api.js";
import { ANSWERS, h, openDialog, plural, probability } from "./dom.js";
import { picture } from "./grid.js";

/** The images of a stack, each to be decided by itself. `answer(images, label)` writes. */
export function openStack(stack, tag, decisions, { readOnly, answer, keys, onclose }) {
  let focused = 0;
  const list = h("ul", { class: "stack-images", role: "listbox", "aria-label": "Images of the stack" });
  const draw = () => {
    const had = list.contains(document.activeElement);
    list.replaceChildren(
      ...stack.images.map(({ image, name, probability: chance }, place) => {
        const label = decisions.of(tag, image);
        const state = label?.decided ? ANSWERS[label.label] : null;
        return h(
          "li",
          {
            class: `tile ${state?.name ?? ""}`,
            role: "option",
            tabindex: place === focused ? "0" : "-1",
            "aria-selected": String(place === focused),
            "aria-label": `${name}, ${state ? state.word : "not decided"}`,
            "data-image": image,
            onfocus: () => (focused = place),
            onclick: () => ((focused = place), draw(), list.children[place].focus()),
          },
          h("div", { class: "picture" }, picture(image, name)),
          h("div", { class: "state" }, state ? `${state.sign} ${state.word}` : ""),
          h("div", { class: "foot" }, h("span", { class: "chance" }, probability(chance)), h("span", { class: "stack-name" }, name)),
        );
      }),
    );
    if (had) list.children[focused]?.focus();
  };
  const decide = (images, label) => answer(images, label);
  const row = h("div", { class: "row buttons" });
  if (!readOnly) {
    for (const label of [1, -1, 0]) {
      const { name, sign, word } = ANSWERS[label];
      const one = () => decide([stack.images[focused].image], label);
      row.append(h("button", { class: `answer ${name}`, onclick: one }, `${sign} ${word} for this one`));
    }
  }
  const text = `${plural(stack.images.length, "image")} that look nearly the same. In the grid they are decided together, here one by one.`;
  const content = h("div", {}, h("p", {}, text), list, row);
  draw();
  const dialog = openDialog(`Stack: ${tag}`, content, { wide: true, onclose });
  list.children[0].focus();
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const action = keys.action(event);
    const label = { yes: 1, no: -1, unsure: 0 }[action];
    if (step) {
      focused = Math.max(0, Math.min(focused + step, stack.images.length - 1));
      draw();
      list.children[focused].focus();
    } else if (label !== undefined && !readOnly) decide([stack.images[focused].image], label);
    else if (action === "expand") dialog.close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return { redraw: draw };
}

/** "Accept all above": the number of suggestions, how many are expected to be wrong, a sample, then one step. */
export function openBulk(view, { accept }) {
  const number = h("input", { type: "number", min: "0.5", max: "1", step: "0.01", value: "0.9", id: "bulk-lowest" });
  const what = h("p", { "aria-live": "polite" });
  const sample = h("ul", { class: "sample" });
  const yes = h("button", { class: "answer yes wide-button", disabled: true }, "Accept");
  const content = h(
    "div",
    { class: "bulk" },
    h("p", { class: "row" }, h("label", { for: "bulk-lowest" }, `Accept “${view.tag}” for every suggestion with a probability of at least`), number),
    what,
    sample,
    h("div", { class: "row buttons" }, yes, h("button", { onclick: () => dialog.close() }, "Cancel")),
  );
  const dialog = openDialog(`Accept all above ${number.value}`, content, { wide: true });
  let found = null;
  let asked = 0;
  const ask = async () => {
    const mine = ++asked;
    yes.disabled = true;
    const lowest = Number(number.value);
    dialog.querySelector("h2").textContent = `Accept all above ${number.value}`;
    const answer = await api.above({ ...view, queue: "missing", status: "open", lowest }).catch((error) => ({ error }));
    if (mine !== asked) return;
    if (answer.error) {
      what.textContent = answer.error.message;
      return;
    }
    found = answer;
    const count = found.answers.length;
    const wrong = Math.round(found.expected_wrong);
    what.textContent = count
      ? `${plural(count, "image")}; judging by the probabilities, about ${wrong} of them would be wrong. ` +
        `A sample, least certain first. It is one step; “Undo” reverts all of it.`
      : "No suggestion is that certain.";
    sample.replaceChildren(
      ...found.sample.map(({ image, probability: chance }) =>
        h("li", {}, picture(image, `Sample, probability ${probability(chance)}`), h("span", { class: "chance" }, probability(chance))),
      ),
    );
    yes.textContent = count ? `Accept ${plural(count, "image")}` : "Accept";
    yes.disabled = !count;
  };
  number.addEventListener("input", ask);
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    await accept(found.answers);
    dialog.close();
  });
  ask();
}

/** Settings of this browser. */
export function openSettings(settings) {
  const check = (name, text) =>
    h(
      "label",
      { class: "row" },
      h("input", { type: "checkbox", checked: settings.get(name) === "1", onchange: (e) => settings.set(name, e.target.checked ? "1" : "0") }),
      text,
    );
  const theme = h(
    "select",
    { onchange: (event) => settings.set("theme", event.target.value) },
    ...[["auto", "system default"], ["light", "light"], ["dark", "dark"]].map(([value, text]) => h("option", { value }, text)),
  );
  theme.value = settings.get("theme");
  openDialog(
    "Settings",
    h(
      "div",
      { class: "settings" },
      h("label", { class: "row" }, "Colours ", theme),
      check("move-on", "Move on to the next undecided image after a decision"),
      check("hide-chances", "Hide probabilities, to judge the picture and not the number"),
      h("p", { class: "quiet" }, "These settings are stored in this browser only."),
    ),
  );
}

// Keyboard shortcuts: actions by name, and the key of each. Answers move on to the next undecided image (a
// setting); keys that move never answer.

import { h } from "./dom.js";

export const ACTIONS = {
  yes: { key: "a", text: "Yes: the image has the tag" },
  no: { key: "x", text: "No: it does not" },
  unsure: { key: "u", text: "Unsure: it stays unknown (also space)" },
  undo: { key: "z", text: "Undo, step by step, back to the first" },
  screenYes: { key: "A", text: "Yes to everything undecided on screen" },
  screenNo: { key: "X", text: "No to everything undecided on screen" },
  mode: { key: "g", text: "Grid or single image" },
  expand: { key: "e", text: "Show the images of a stack" },
  heat: { key: "h", text: "Heat map: where the tag was seen" },
  panel: { key: "i", text: "Show or hide the panel about the image" },
  rerank: { key: "r", text: "Re-rank everything with the updated model" },
  nextTag: { key: "n", text: "Next tag: the surest other one, or the next of a list sorted otherwise" },
  smaller: { key: "[", text: "Smaller pictures" },
  larger: { key: "]", text: "Larger pictures" },
  search: { key: "/", text: "Search tags" },
  find: { key: "s", text: "Search images by a phrase, or drop a picture on the page" },
  like: { key: "m", text: "More like this: images that look like the selected ones" },
  newTag: { key: "t", text: "New tag, from the selected images" },
  help: { key: "?", text: "This list" },
};

const FIXED = [
  ["← ↑ → ↓", "Move only; in a single image: other images, other tags"],
  ["Shift + arrows", "Extend the selection"],
  ["Ctrl + A", "Select everything on screen"],
  ["Enter", "Yes to the selection"],
  ["Home, End, Page ↑ ↓", "Jump"],
  ["Esc", "Clear the selection; close a dialog"],
  ["1 – 9", "In a single image: yes to this suggestion, and back"],
];

export class Keys {
  constructor() {
    const kept = JSON.parse(localStorage.getItem("keys") ?? "{}");
    this.keys = Object.fromEntries(Object.entries(ACTIONS).map(([name, { key }]) => [name, kept[name] ?? key]));
  }

  /** The action that a keyboard event asks for, if any. Whoever types text or holds Ctrl or Alt means something else. */
  action(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return null;
    return Object.keys(this.keys).find((name) => this.keys[name] === event.key) ?? null;
  }

  set(name, key) {
    const other = Object.keys(this.keys).find((action) => this.keys[action] === key);
    if (other && other !== name) this.keys[other] = this.keys[name]; // swap them, so that none is lost
    this.keys[name] = key;
    localStorage.setItem("keys", JSON.stringify(this.keys));
  }

  reset() {
    localStorage.removeItem("keys");
    for (const [name, { key }] of Object.entries(ACTIONS)) this.keys[name] = key;
  }

  /** The list of all keys, in which those of actions can be changed. */
  list() {
    const box = h("div", { class: "keys" });
    const draw = () => {
      const rows = Object.entries(ACTIONS).map(([name, { text }]) =>
        h("tr", {}, h("td", {}, this.changer(name, draw)), h("td", {}, text)),
      );
      const fixed = FIXED.map(([key, text]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, text)));
      box.replaceChildren(
        h("table", {}, h("tbody", {}, ...rows)),
        h(
          "div",
          {},
          h("table", {}, h("tbody", {}, ...fixed)),
          h("p", { class: "quiet" }, "Click a key in the left list, then press another one to change it."),
          h("button", { onclick: () => (this.reset(), draw()) }, "Reset to defaults"),
        ),
      );
    };
    draw();
    return box;
  }

  changer(name, draw) {
    const button = h("button", { class: "key", "aria-label": `Key for: ${ACTIONS[name].text}` }, this.keys[name]);
    button.addEventListener("click", () => {
      button.textContent = "press…";
      button.addEventListener("keydown", (event) => {
        if (["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
        event.preventDefault();
        event.stopPropagation();
        if (event.key.length === 1 && event.key !== " ") this.set(name, event.key);
        draw();
      });
    });
    return button;
  }
}

/** Does this event belong to a field that takes text, or to something that uses the key itself? */
export function isTyping(event) {
  const target = event.target;
  return target.matches("input, select, textarea, [contenteditable]") || Boolean(target.closest("dialog"));
}

// Small helpers for building the page.

/** An element: h("button", {class: "plain", onclick: f, "aria-label": "Accept"}, "Accept"). Text is never read as HTML. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled" || key === "hidden") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Read out by screen readers. */
export function announce(text) {
  byId("announce").textContent = text;
}

/** A message that goes away by itself. */
export function toast(text, { action, onAction } = {}) {
  const box = h("div", { class: "toast" }, text);
  if (action) box.append(h("button", { onclick: () => (box.remove(), onAction()) }, action));
  byId("toasts").append(box);
  while (byId("toasts").children.length > 3) byId("toasts").firstChild.remove();
  setTimeout(() => box.remove(), action ? 10000 : 4000);
}

/** A message that stays until it is closed or settled: a conflict, a server that does not answer. */
export function notice(text, actions = []) {
  const box = byId("notice");
  box.replaceChildren(
    h("span", {}, text),
    ...actions.map(([name, act]) => h("button", { onclick: () => (clearNotice(), act()) }, name)),
    h("button", { class: "plain", "aria-label": "Close this message", onclick: clearNotice }, "✕"),
  );
  box.hidden = false;
}

export function clearNotice() {
  byId("notice").hidden = true;
}

/** A modal dialog; the focus stays inside and goes back when it closes. */
export function openDialog(title, content, { wide = false, onclose } = {}) {
  const close = h("button", { class: "plain", "aria-label": "Close" }, "✕");
  const dialog = h(
    "dialog",
    { class: wide ? "wide" : "", "aria-label": title },
    h("div", { class: "dialog-head" }, h("h2", {}, title), close),
    content,
  );
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (onclose) onclose();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export const percent = (share) => `${Math.round(100 * share)} %`;
export const probability = (value) => value.toFixed(2);
export const plural = (number, one, many = one + "s") => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
export const ANSWERS = {
  1: { name: "yes", sign: "✓", word: "Yes" },
  [-1]: { name: "no", sign: "✗", word: "No" },
  0: { name: "unsure", sign: "?", word: "Unsure" },
};

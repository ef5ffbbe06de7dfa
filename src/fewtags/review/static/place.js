// The reviewer's location, stored in the URL: it can be bookmarked, reloaded and shared.

const DEFAULTS = {
  mode: "tag", // or "image"
  tag: "",
  queue: "missing",
  status: "open",
  lowest: "",
  highest: "",
  text: "",
  with: "",
  reviewer: "",
  stacks: "1",
  image: "",
};

export const FILTERS = ["status", "lowest", "highest", "text", "with", "reviewer", "stacks"];

export class Place extends EventTarget {
  constructor() {
    super();
    this.read();
    addEventListener("popstate", () => {
      this.read();
      this.dispatchEvent(new Event("change"));
    });
  }

  read() {
    const query = new URLSearchParams(location.search);
    this.values = { ...DEFAULTS };
    for (const key of Object.keys(DEFAULTS)) if (query.has(key)) this.values[key] = query.get(key);
    if (query.has("token")) history.replaceState(null, "", this.address()); // it is in the cookie now
  }

  get(key) {
    return this.values[key];
  }

  /** Navigate; `quiet` changes only the URL, `step` adds a history entry for the back button. */
  set(changes, { step = false, quiet = false } = {}) {
    const before = this.address();
    Object.assign(this.values, changes);
    if (this.address() === before) return;
    history[step ? "pushState" : "replaceState"](null, "", this.address());
    if (!quiet) this.dispatchEvent(new Event("change"));
  }

  /** Without any filter that is not the usual one. */
  withoutFilters() {
    return Object.fromEntries(FILTERS.map((key) => [key, DEFAULTS[key]]));
  }

  /** How many filters are set. */
  get filtered() {
    return FILTERS.filter((key) => this.values[key] !== DEFAULTS[key]).length;
  }

  /** As query parameters for the server. */
  view() {
    const { tag, queue, status, lowest, highest, text, reviewer, stacks } = this.values;
    return { tag, queue, status, lowest, highest, text, reviewer, stacks, together_with: this.values.with };
  }

  address() {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(this.values)) if (value !== DEFAULTS[key]) query.set(key, value);
    const text = query.toString();
    return location.pathname + (text ? `?${text}` : "");
  }
}

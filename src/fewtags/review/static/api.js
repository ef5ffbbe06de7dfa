// Requests to the server. Everything is same-origin; the token is in a cookie that scripts cannot read.

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error || `The server returned status ${status}.`);
    this.status = status;
    this.body = body;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError(0, { error: "The server does not respond. Is `fewtags review` still running?" });
  }
  const text = await response.text();
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = { error: text };
  }
  if (!response.ok) throw new ApiError(response.status, body);
  return body;
}

const get = (path, query = {}) => ask(`${path}?${new URLSearchParams(clean(query))}`);
const post = (path, body) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

function clean(query) {
  return Object.fromEntries(Object.entries(query).filter(([, v]) => v !== undefined && v !== null && v !== ""));
}

export const api = {
  session: () => get("/api/session"),
  openQueue: (view) => get("/api/queues", view),
  window: (id, offset, limit, seen) => get(`/api/queues/${id}`, { offset, limit, seen }),
  above: (view) => get("/api/above", view),
  decide: (queue, answers) => post("/api/decisions", { queue, answers }),
  undo: (step) => post("/api/undo", { step }),
  wouldUndo: (step) => get("/api/undo", { step }),
  newTag: (body) => post("/api/tags", body),
  changeTag: (body) => post("/api/tags/change", body),
  search: (text) => get("/api/search", { text }),
  like: (images) => ask(`/api/search?${images.map((image) => `like=${image}`).join("&")}`),
  likePicture: (file) => ask("/api/search", { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file }),
  reviewed: () => get("/api/reviewed"),
  changes: (since) => get("/api/changes", { since }),
  audit: () => get("/api/audit"),
  newWave: () => post("/api/audit/waves", {}),
  image: (image) => get(`/api/images/${image}`),
  evidence: (image, tag) => get(`/api/images/${image}/evidence`, { tag }),
};

export const thumbnail = (image) => `/api/images/${image}/thumbnail`;
export const large = (image) => `/api/images/${image}/large`;
export const heat = (image, tag) => `/api/images/${image}/heat?${new URLSearchParams({ tag })}`;

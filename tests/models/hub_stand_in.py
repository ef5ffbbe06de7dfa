"""A Hugging Face Hub of one process: as much of its protocol as uploading and downloading a small model takes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "c" * 40


class HubStandIn:
    """`with HubStandIn() as hub:` gives one that listens at `hub.address`; `hub.repositories` is what it holds."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.downloads: list[str] = []

    def __enter__(self) -> HubStandIn:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                hub.post(self, self.path.split("?")[0], body)

            def do_GET(self) -> None:
                hub.get(self, self.path.split("?")[0])

            def do_HEAD(self) -> None:
                self.do_GET()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def is_huggingfaces(self, patch: pytest.MonkeyPatch, cache: Path) -> None:
        """For all that is not told another address. In a process of its own it would be HF_ENDPOINT and HF_HOME."""
        patch.setattr("huggingface_hub.constants.ENDPOINT", self.address)
        template = self.address + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def post(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization") or "me", asked["name"])))
            self.repositories.setdefault(name, {})
            self.private[name] = "private" in (asked.get("visibility"), "private" if asked.get("private") else "")
            answer(request, {"url": f"{self.address}/{name}"})
        elif path == "/api/validate-yaml":
            answer(request, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            answer(request, {"files": [{**file, "shouldIgnore": False, "oid": None} for file in files]})
        elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.repositories[found.group(1)][line["value"]["path"]] = content
            address = f"{self.address}/{found.group(1)}/commit/{COMMIT}"
            answer(request, {"commitUrl": address, "commitOid": COMMIT, "success": True})
        else:
            answer(request, {"error": f"unknown: {path}"}, 404)

    def get(self, request: BaseHTTPRequestHandler, path: str) -> None:
        about = re.fullmatch(r"/api/models/(.+?)(/revision/.+|/tree/.+)?", path)
        file = re.fullmatch(r"/(.+?)/resolve/[^/]+/(.+)", path)
        name = (about or file).group(1) if about or file else ""
        if name not in self.repositories:
            answer(request, {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif about and "/tree/" in path:
            answer(request, [entry(*item) for item in self.repositories[name].items()])
        elif about:
            answer(
                request, {"id": name, "sha": COMMIT, "siblings": [{"rfilename": n} for n in self.repositories[name]]}
            )
        elif file.group(2) not in self.repositories[name]:
            answer(request, {"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        else:
            content = self.repositories[name][file.group(2)]
            if request.command == "GET":
                self.downloads.append(file.group(2))
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            answer(request, content, 200, headers)


def entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


def answer(
    request: BaseHTTPRequestHandler, content: object, status: int = 200, headers: dict[str, str] | None = None
) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    request.send_response(status)
    for name, value in {"Content-Type": "application/json", **(headers or {}), "Content-Length": len(body)}.items():
        request.send_header(name, str(value))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)

"""A run as an ML backend of Label Studio: it predicts tasks, and learns from every annotation at once.

    GET  /health       the process answers
    POST /setup        the labelling interface of a project; answers with the model's version
    POST /predict      tasks -> their tags, with a score
    POST /webhook      an annotation was made, changed or deleted

A chosen tag is present. One that was predicted for the task and then removed is absent; so are all that were not
chosen if annotations are `complete`. The others are unknown: nobody may have looked for them.

What was learned is kept in RUN/label_studio.jsonl (data/decisions.py) and learned again at the next start. Images are
read from one folder, or fetched from one Label Studio: the URL of a task never leads elsewhere.
"""

from __future__ import annotations

import base64
import hmac
import json
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urljoin, urlsplit

from fastapi import FastAPI, Request
from PIL import Image
from starlette.exceptions import HTTPException

from fewtags import __version__
from fewtags.atomic import append_line
from fewtags.data.decisions import DecidedLabel, latest, read_decisions
from fewtags.data.formats.label_studio import dicts, image_names, value_tags
from fewtags.data.formats.locate import ImageFolder
from fewtags.data.images import BadImage, open_image
from fewtags.data.tag_tree import levels_of
from fewtags.data.writers.label_studio import choices_prediction
from fewtags.data.xml import MalformedXml, parse_xml
from fewtags.errors import UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.tagger import Tagger

LEARNED = "label_studio.jsonl"
MAX_BYTES = 50 * 1024**2  # of a fetched image
SECONDS = 20.0  # to fetch one


# --- the labelling interface ---


@dataclass(frozen=True)
class Interface:
    """The control of a project that tags are chosen in."""

    control: str = "tags"
    image: str = "image"
    key: str | None = None  # of the image in a task's data
    choices: frozenset[str] = frozenset()  # all tags, if empty

    @classmethod
    def of(cls, config: str) -> Interface:
        """The first Choices about an Image in the XML of a labelling interface."""
        try:
            root = parse_xml(config.encode())
        except MalformedXml as error:
            raise HTTPException(422, f"the labelling interface is not readable: {error}") from None
        images = {tag.get("name"): tag.get("value", "").removeprefix("$") for tag in root.iter("Image")}
        for control in root.iter("Choices"):
            image = control.get("toName")
            if image in images:
                values = frozenset(choice.get("value", "") for choice in control.iter("Choice"))
                return cls(control.get("name", ""), image or "", images[image] or None, values)
        raise HTTPException(422, "the labelling interface has no <Choices> for an <Image>")


# --- images ---


class Images:
    """Opens the images of tasks: files below `folder`, or what the Label Studio at `address` has."""

    def __init__(self, folder: Path | None, address: str | None, token: str | None):
        self.folder = None if folder is None else ImageFolder(folder)
        self.root, self.address, self.token = folder, address, token

    def open(self, task: Mapping[str, Any], key: str | None) -> tuple[str, Image.Image]:
        """The image's name and picture. Raises BadImage."""
        names = image_names(dict(task), key)
        for name in filter(stays_inside, names):
            found = None if self.folder is None else self.folder.find(name)
            if found and self.root is not None:
                return found, open_image(self.root / found)
        data = task.get("data")
        place = data.get(key) if key and isinstance(data, dict) else None
        if self.address and isinstance(place, str):
            return (names or [place])[0], self._fetch(place)
        raise BadImage(names[0] if names else "the task", "missing image", "it is not in the folder of images.")

    def _fetch(self, place: str) -> Image.Image:
        assert self.address is not None
        url = urljoin(self.address.rstrip("/") + "/", place)
        if urlsplit(url)[:2] != urlsplit(self.address)[:2]:
            raise BadImage(place, "missing image", "it is on another server than this Label Studio.")
        request = urllib.request.Request(url, headers={"Authorization": f"Token {self.token}"} if self.token else {})
        try:
            with urllib.request.build_opener(NoRedirect).open(request, timeout=SECONDS) as answer:
                content = answer.read(MAX_BYTES + 1)
        except OSError as error:
            raise BadImage(place, "missing image", f"Label Studio did not give it ({error}).") from None
        if len(content) > MAX_BYTES:
            raise BadImage(place, "oversized image", f"it has more than {MAX_BYTES:,} bytes.")
        return open_image(content)


def stays_inside(name: str) -> bool:
    """Below the folder it is joined to: no task may name a file elsewhere."""
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and ":" not in name


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to another server, with the token."""

    def redirect_request(self, *_: Any) -> None:  # pyrefly: ignore[bad-override]
        return None


# --- predicting and learning ---


class Backend:
    def __init__(
        self, run: Path, tagger: Tagger, images: Images, *, complete: bool = False, api_key: str | None = None
    ):
        self.run, self.tagger, self.images = run, tagger, images
        self.complete, self.api_key = complete, api_key
        self.file = run / LEARNED
        self.interfaces: dict[str, Interface] = {}  # by project
        self.predicted: dict[str, set[str]] = {}  # tags last predicted for an image
        self.tasks: dict[Any, dict[str, Any]] = {}  # by the id of their annotation
        self.lock = threading.Lock()  # one model
        self.learned = 0
        self.labels: dict[tuple[str, str], int] = {}  # what annotations said, by image and tag
        self._learn_again()

    @property
    def version(self) -> str:
        """Changes with every annotation that was learned, so that Label Studio asks for new predictions."""
        return f"fewtags-{self.run.name}-{self.learned}"

    def interface(self, project: Any, config: Any) -> Interface:
        """The project's, from the request or from an earlier one."""
        name = str(project.get("id") if isinstance(project, dict) else project).split(".")[0]
        if isinstance(project, dict):
            config = config or project.get("label_config")
        if isinstance(config, str) and config:
            self.interfaces[name] = Interface.of(config)
        return self.interfaces.get(name, Interface())

    def predict(self, tasks: Sequence[Mapping[str, Any]], interface: Interface) -> list[dict[str, Any]]:
        with self.lock:
            return [self._predict(task, interface) for task in tasks]

    def _predict(self, task: Mapping[str, Any], interface: Interface) -> dict[str, Any]:
        try:
            name, picture = self.images.open(task, interface.key)
        except BadImage as error:
            return {"result": [], "score": 0.0, "model_version": self.version, "error": str(error)}
        row = self.tagger.predict_proba([picture])[0]
        order = sorted(range(len(row)), key=lambda c: -row[c])
        allowed = [c for c in order if not interface.choices or self.tagger.classes_[c] in interface.choices]
        tags = {str(self.tagger.classes_[c]): float(row[c]) for c in allowed if row[c] >= self.tagger.thresholds_[c]}
        self.predicted[name] = set(tags)
        return choices_prediction(tags, interface.control, interface.image, self.version)

    def learn(self, task: Mapping[str, Any], annotation: Mapping[str, Any] | None, interface: Interface) -> int:
        """Learn an annotation, or that there is none any more. Returns how many labels changed."""
        with self.lock:
            name, picture = self.images.open(task, interface.key)
            said = {} if annotation is None else self._said(name, annotation, interface)
            before = {tag: label for (image, tag), label in self.labels.items() if image == name}
            changes = {tag: said.get(tag, UNKNOWN) for tag in {*said, *before}}
            changes = {tag: label for tag, label in changes.items() if before.get(tag, UNKNOWN) != label}
            if changes:
                self._teach(picture, changes)
                self._keep(name, changes, annotation or {})
            return len(changes)

    def _said(self, name: str, annotation: Mapping[str, Any], interface: Interface) -> dict[str, int]:
        if annotation.get("was_cancelled"):  # skipped by the annotator
            return {}
        known = set(self.tagger.classes_.tolist())
        results = [item for item in dicts(annotation.get("result")) if item.get("from_name") == interface.control]
        tags = [tag for item in results for tag in value_tags(item.get("value") or {})]
        chosen = {name for tag in tags for name in (tag, *levels_of(tag))} & known  # a level implies those above
        denied = known & (interface.choices or known) if self.complete else self.predicted.get(name, set())
        return {**{tag: ABSENT for tag in denied - chosen}, **{tag: PRESENT for tag in chosen}}

    def _teach(self, picture: Image.Image, labels: Mapping[str, int]) -> None:
        feature = self.tagger.features([picture])[0]
        for tag, label in labels.items():
            self.tagger.relabel(feature, tag, label)

    def _keep(self, name: str, labels: Mapping[str, int], annotation: Mapping[str, Any]) -> None:
        who = annotation.get("completed_by")
        reviewer = str(who.get("email") or who.get("id")) if isinstance(who, dict) else str(who or "")
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        for tag, label in labels.items():
            self.labels[name, tag] = label
            decision = DecidedLabel(name, tag, label, reviewer, now, self.run.name)
            append_line(self.file, json.dumps(asdict(decision), ensure_ascii=False))
        self.learned += 1

    def _learn_again(self) -> None:
        """What earlier annotations said, from the file."""
        decisions = latest(read_decisions(self.file)) if self.file.is_file() else {}
        by_image: dict[str, dict[str, int]] = {}
        for (image, tag), decision in decisions.items():
            by_image.setdefault(image, {})[tag] = decision.label
        for image, labels in by_image.items():
            try:
                name, picture = self.images.open({"data": {"image": image}}, "image")
            except BadImage:
                continue  # it was moved; its labels stay in the file
            self._teach(picture, labels)
            self.labels.update({(name, tag): label for tag, label in labels.items()})
            self.learned += 1

    def authorise(self, request: Request) -> None:
        """The key as Label Studio sends it: the password of its basic authentication, or a header of its webhook."""
        if self.api_key is None:
            return
        given = request.headers.get("x-api-key", "")
        kind, _, word = request.headers.get("authorization", "").partition(" ")
        if not given and kind.lower() == "basic":
            given = base64.b64decode(word + "==").decode(errors="replace").partition(":")[2]
        if not hmac.compare_digest(given.encode(), self.api_key.encode()):
            raise HTTPException(401, "the API key is missing or wrong")


# --- the protocol ---


def create_backend(backend: Backend) -> FastAPI:
    app = FastAPI(title="fewtags for Label Studio", version=__version__, docs_url=None, redoc_url=None)

    @app.get("/")
    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "UP", "model_class": "fewtags", "model_version": backend.version}

    @app.post("/setup")
    def setup(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        backend.authorise(request)
        backend.interface(body.get("project"), body.get("schema"))
        return {"model_version": backend.version}

    @app.get("/versions")
    def versions() -> dict[str, Any]:
        return {"versions": [backend.version]}

    @app.post("/predict")
    def predict(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        backend.authorise(request)
        interface = backend.interface(body.get("project"), body.get("label_config"))
        return {"results": backend.predict(dicts(body.get("tasks")), interface), "model_version": backend.version}

    @app.post("/webhook")
    def webhook(request: Request, body: dict[str, Any]) -> dict[str, Any]:
        backend.authorise(request)
        return learned_from(backend, body)

    return app


def learned_from(backend: Backend, body: Mapping[str, Any]) -> dict[str, Any]:
    """What an event taught. Events that teach nothing are answered too: Label Studio sends all of them."""
    action = str(body.get("action", ""))
    if not action.startswith(("ANNOTATION_", "ANNOTATIONS_")):
        return {"learned": 0}
    interface = backend.interface(body.get("project"), None)
    annotations = [*dicts([body.get("annotation")]), *dicts(body.get("annotations"))]
    tasks = {task.get("id"): task for task in [*dicts([body.get("task")]), *dicts(body.get("tasks"))]}
    learned, problem = 0, None
    for annotation in annotations:
        deleted = action == "ANNOTATIONS_DELETED"  # then only its id comes
        number = annotation.get("id")
        task = backend.tasks.get(number) if deleted else tasks.get(annotation.get("task"), body.get("task"))
        if not isinstance(task, dict):
            continue
        backend.tasks[number] = task
        try:
            learned += backend.learn(task, None if deleted else annotation, interface)
        except (BadImage, UserError) as error:
            problem = str(error)
    return {"learned": learned, "model_version": backend.version, **({"problem": problem} if problem else {})}

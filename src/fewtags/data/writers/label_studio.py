"""Predictions for Label Studio: one JSON file of tasks, to import or to send to its API by id."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from fewtags.atomic import atomic_write
from fewtags.data.formats.label_studio import image_names, load_tasks
from fewtags.data.formats.options import TypedOptions
from fewtags.data.tag_tree import TagTree
from fewtags.errors import UserError
from fewtags.wording import plural


class LabelStudioWriteOptions(TypedOptions):
    file: Path = Path("label-studio.json")
    """The output file. An existing one is replaced."""
    tasks: Path | None = None
    """A project export to add predictions to; task ids are kept. Default: new tasks."""
    root: Path | None = None
    """The folder that image paths of new tasks are relative to. Default: the folder of the file."""
    prefix: str = "/data/local-files/?d="
    """Prefix of the image paths of new tasks."""
    control: str = "tags"
    """Name of the Choices control in the labelling interface."""
    image: str = "image"
    """Name of the Image in the labelling interface, and the key of the image in a new task's data."""
    model_version: str = "fewtags"


class LabelStudioWriter:
    """Everything is written at the end: a partial file could not be imported."""

    folders: Sequence[Path] = ()

    def __init__(
        self,
        options: LabelStudioWriteOptions,
        dry_run: bool,
        say: Callable[[str], object],
        folders: Sequence[Path] = (),
    ):
        self.options, self.dry_run, self.say, self.tree = options, dry_run, say, TagTree()
        self.tasks: list[dict[str, Any]] = [] if options.tasks is None else load_tasks(options.tasks)
        self.by_name: dict[str, list[dict[str, Any]]] = {}
        for task in self.tasks:
            for name in image_names(task):
                self.by_name.setdefault(name, []).append(task)
        self.predicted = self.unmatched = 0

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        task = self._task(image)
        if task is None:
            self.unmatched += 1
            return
        self.predicted += 1
        if self.dry_run:
            self.say(f"{image}: {', '.join(tags)}")
        others = [old for old in task.get("predictions") or [] if not self._is_ours(old)]
        o = self.options
        task["predictions"] = [*others, choices_prediction(tags, o.control, o.image, o.model_version)]

    def close(self) -> str:
        file = self.options.file
        if not self.dry_run:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as temporary:
                temporary.write_text(json.dumps(self.tasks, indent=1, ensure_ascii=False), encoding="utf-8")
        done = "would be written" if self.dry_run else "written"
        missing = f"; {plural(self.unmatched, 'image')} in none of its tasks" if self.unmatched else ""
        return f"{plural(self.predicted, 'prediction')} {done} to {file}{missing}."

    def _is_ours(self, prediction: Any) -> bool:
        return isinstance(prediction, dict) and prediction.get("model_version") == self.options.model_version

    def _task(self, image: Path) -> dict[str, Any] | None:
        """The task of an image: a new one, or the one in the export with the longest matching path."""
        if self.options.tasks is None:
            root = self.options.root or self.options.file.parent
            path = PurePosixPath(Path(os.path.relpath(image, root)).as_posix())
            if path.parts[0] == "..":
                raise UserError(f"{image} is outside {root}; set -o root= to the folder that Label Studio serves.")
            task = {"data": {self.options.image: self.options.prefix + quote(str(path))}}
            self.tasks.append(task)
            return task
        parts = Path(os.path.abspath(image)).parts
        for start in range(1, len(parts)):
            found = self.by_name.get("/".join(parts[start:]), [])
            if len(found) == 1:
                return found[0]
        return None


def choices_prediction(tags: Mapping[str, float], control: str, image: str, model_version: str) -> dict[str, Any]:
    """Tags with their probabilities as a prediction; its score is their mean."""
    result = {
        "id": uuid.uuid4().hex[:10],
        "from_name": control,
        "to_name": image,
        "type": "choices",
        "value": {"choices": list(tags)},
    }
    score = sum(tags.values()) / len(tags) if tags else 0.0
    return {"model_version": model_version, "score": round(float(score), 4), "result": [result] if tags else []}

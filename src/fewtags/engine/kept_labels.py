"""The labels of a run as they were last read from their source: reading those of 100,000 images takes seconds.

They are read again if the settings, the code of the readers, or any file they were read from has changed. If that is a
folder, these are all files in it, by size, time and inode; if it is a label file, it and the names in the folders of
its images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import fewtags.data
from fewtags.data.annotations import Annotations, Finding
from fewtags.data.folder_scan import look, packed, unpacked
from fewtags.data.formats import read_annotations
from fewtags.data.prepare import DataConfig
from fewtags.data.tag_tree import TagTree
from fewtags.engine.kept import Arrays, code_of, keep, key_of, load_kept
from fewtags.engine.run_folder import RunFolder

SMALL = 2000  # images, up to which reading takes no time worth saving
_TEXTS = ("name", "notes", "renamed_tags", "english", "categories")  # written as JSON


def read_labels(run: Path, config: DataConfig) -> Annotations:
    """As `read_annotations` reads them."""
    file = RunFolder(run).outputs / "labels.npz"
    places = [Path(place) for place in _places(config) if os.path.exists(place)]
    key = key_of(config.model_dump_json(), code_of(fewtags.data), _look(places, run)) if file.is_file() else ""
    kept = load_kept(file, key) if key else None
    if kept is not None and _names_in(unpacked(kept["folders"])) == str(kept["names"]):
        return _restored(kept)
    read = read_annotations(config.source, tags=config.tags, format=config.format, **config.options)
    if len(read) > SMALL and not any(finding.kind == "missing image" for finding in read.findings):
        key = key or key_of(config.model_dump_json(), code_of(fewtags.data), _look(places, run))
        folders = [] if Path(config.source).is_dir() else sorted({os.path.dirname(path) for path in _paths(read)})
        keep(file, key, folders=packed(folders), names=np.array(_names_in(folders)), **_stored(read))
    return read


def _places(config: DataConfig) -> Iterator[str]:
    """Files and folders that the settings name."""
    options = [value for value in config.options.values() if isinstance(value, str)]
    return (place for place in (config.source, config.tags, *options) if place)


def _look(places: Iterable[Path], run: Path) -> str:
    seen = look(places, besides=[run])
    return key_of(packed(seen.paths).tobytes(), seen.stamps.tobytes())


def _names_in(folders: Iterable[str]) -> str:
    """A hash of which files are in them; '' without folders."""
    names = [name for folder in folders for name in (folder, *sorted(_listed(folder)))]
    return key_of(packed(names).tobytes()) if names else ""


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _paths(read: Annotations) -> Iterator[str]:
    root = str(read.root.absolute())
    return (os.path.join(root, image) for image in read.images)


# --- as arrays ---


def _stored(read: Annotations) -> Arrays:
    about = {name: getattr(read, name) for name in _TEXTS}
    about |= {"root": str(read.root), "tree": read.tree.to_json(), "findings": [asdict(each) for each in read.findings]}
    arrays = {"images": packed(read.images), "labels": read.labels, "splits": read.splits}
    arrays["about"] = packed([json.dumps(about)])
    arrays |= {} if read.ids is None else {"ids": packed([json.dumps(read.ids)])}
    return arrays | ({} if read.groups is None else {"groups": read.groups})


def _restored(arrays: Arrays) -> Annotations:
    about: dict[str, Any] = json.loads(unpacked(arrays["about"])[0])
    return Annotations(
        Path(about["root"]),
        unpacked(arrays["images"]),
        labels=arrays["labels"],
        splits=arrays["splits"],
        ids=json.loads(unpacked(arrays["ids"])[0]) if "ids" in arrays else None,
        groups=arrays.get("groups"),
        tree=TagTree.from_json(about["tree"]),
        findings=[Finding(**each) for each in about["findings"]],
        **{name: about[name] for name in _TEXTS},
    )

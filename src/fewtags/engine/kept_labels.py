"""The labels of a run as they were last read from their source: reading those of 100,000 images takes seconds.

They are read again if the settings, the code of the readers, or any file they were read from has changed. If that is a
folder, these are all files in it, by size, time and inode; if it is a label file, it and the names in the folders of
its images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import fewtags.data
from fewtags.data.annotations import Annotations, Finding
from fewtags.data.folder_scan import look, packed, unpacked
from fewtags.data.prepare import DataConfig, read_data
from fewtags.data.tag_tree import TagTree
from fewtags.engine.kept import Arrays, code_of, keep, key_of, load_kept
from fewtags.engine.run_folder import RunFolder
from fewtags.errors import UserError

SMALL = 2000  # images, up to which reading takes no time worth saving
_TEXTS = ("name", "notes", "renamed_tags", "english", "categories")  # written as JSON


def read_labels(run: Path, config: DataConfig) -> Annotations:
    """As `read_data` reads them."""
    seen = seen_files(run, config)
    kept = load_kept(_file(run), _key(config, seen))
    if kept is not None and _names_in(unpacked(kept["folders"])) == str(kept["names"]):
        return _restored(kept)
    read = read_data(config)
    keep_labels(run, config, read, seen)
    return read


def seen_files(run: Path, config: DataConfig) -> str:
    """A hash of how the files look that labels are read from; '' if that cannot be said. It is taken before they are
    read: labels that are changed meanwhile are read again."""
    try:
        seen = look(filter(os.path.exists, _places(config)), besides=[run])
    except (OSError, UserError):  # a folder that may not be read, a file that vanished
        return ""
    return key_of(packed(seen.paths).tobytes(), seen.stamps.tobytes())


def keep_labels(run: Path, config: DataConfig, read: Annotations, seen: str) -> None:
    if not seen or len(read) <= SMALL or any(finding.kind == "missing image" for finding in read.findings):
        return
    read = replace(read, root=read.root.absolute())
    folders = [] if Path(config.source).is_dir() else sorted({os.path.dirname(path) for path in _paths(read)})
    names = np.array(_names_in(folders))
    keep(_file(run), _key(config, seen), folders=packed(folders), names=names, **_stored(read))


def _file(run: Path) -> Path:
    return RunFolder(run).outputs / "labels.npz"


def _key(config: DataConfig, seen: str) -> str:
    # pyrefly: ignore[bad-argument-type]  # a module has a hash
    return key_of(config.model_dump_json(), code_of(fewtags.data), seen)


def _places(config: DataConfig) -> Iterator[str]:
    """Files and folders that the settings name."""
    options = [value for value in config.options.values() if isinstance(value, str)]
    return (place for place in (config.source, config.tags, *options) if place)


def _names_in(folders: Iterable[str]) -> str:
    """A hash of which files are in them; '' without folders."""
    names = [name for folder in folders for name in (folder, *sorted(_listed(folder)))]
    return key_of(packed(names).tobytes()) if names else ""


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _paths(read: Annotations) -> Iterator[str]:
    return (os.path.join(read.root, image) for image in read.images)


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

"""Writes predicted tags where other software reads them: `fewtags predict --write NAME`. One file and one row per
writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewtags.data.writers.base import TagWriter, WriterKind
from fewtags.data.writers.camtrap import CamtrapWriteOptions, CamtrapWriter
from fewtags.data.writers.label_studio import LabelStudioWriteOptions, LabelStudioWriter
from fewtags.data.writers.sidecar import SidecarWriteOptions, SidecarWriter
from fewtags.data.writers.xmp import XmpWriteOptions, XmpWriter
from fewtags.errors import UserError, did_you_mean

__all__ = ["WRITERS", "TagWriter", "WriterKind", "open_writer"]

WRITERS = {
    kind.name: kind
    for kind in (
        WriterKind("xmp", "keywords in .xmp files next to the photos", XmpWriteOptions, XmpWriter),
        WriterKind("sidecar", "same-name .txt files of tags", SidecarWriteOptions, SidecarWriter),
        WriterKind(
            "labelstudio",
            "predictions to import into Label Studio",
            LabelStudioWriteOptions,
            LabelStudioWriter,
            resumable=False,
        ),
        WriterKind(
            "camtrapdp", "observations of a Camtrap DP package", CamtrapWriteOptions, CamtrapWriter, resumable=False
        ),
    )
}


def open_writer(
    name: str,
    options: Mapping[str, Any],
    *,
    folders: Sequence[Path] = (),
    dry_run: bool = False,
    say: Callable[[str], object] = print,
) -> TagWriter:
    """`options` are the fields of the writer's options class; links next to photos may lead to files in `folders`;
    `say` gets a line for every file in a dry run."""
    if name not in WRITERS:
        raise UserError(f"Tags cannot be written as '{name}'; {did_you_mean(name, WRITERS)}")
    kind = WRITERS[name]
    return kind.open(kind.options.parse(options, f"Writing {name}"), dry_run, say, folders)

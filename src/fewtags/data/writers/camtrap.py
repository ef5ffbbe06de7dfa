"""Writes predicted tags as observations of a machine, to a copy of the tables of a Camtrap DP package."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fewtags.atomic import atomic_write
from fewtags.data.formats.camtrap import KINDS, MEDIA, OBSERVATIONS, PACKAGE, events_of, read_media, read_table
from fewtags.data.formats.options import TypedOptions
from fewtags.data.tag_tree import TagTree
from fewtags.errors import UserError
from fewtags.wording import plural

COLUMNS = (
    "observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd", "observationLevel",
    "observationType", "scientificName", "classificationMethod", "classifiedBy", "classificationTimestamp",
    "classificationProbability",
)  # fmt: skip
OTHERS = {"person": "human", "people": "human"}


class CamtrapWriteOptions(TypedOptions):
    package: Path
    """The package of the images: a folder with datapackage.json, deployments.csv, media.csv and observations.csv."""
    out: Path
    """Folder for the tables with the new observations. Media files are not copied: move the tables next to them."""
    classified_by: str = "fewtags"
    """Name of the machine in the column classifiedBy; its earlier observations are replaced."""


class CamtrapWriter:
    """Everything is written at the end: a package with half of its observations would look complete."""

    folders: Sequence[Path] = ()

    def __init__(
        self, options: CamtrapWriteOptions, dry_run: bool, say: Callable[[str], object], folders: Sequence[Path] = ()
    ):
        self.options, self.dry_run, self.say, self.tree = options, dry_run, say, TagTree()
        folder = options.package
        if not folder.is_dir():
            raise UserError(f"-o package={folder} should be the folder of a Camtrap DP package; it does not exist.")
        if options.out.exists():
            raise UserError(f"{options.out} already exists; choose another folder with -o out=.")
        self.media = read_media(folder)
        self.observations = read_table(folder / OBSERVATIONS, ("observationID",))
        self.events = events_of(self.media.values(), self.observations)
        self.by_file: dict[str, list[str]] = {}
        for name, media in self.media.items():
            for file in {Path(media["filePath"]).name, media.get("fileName", "")} - {""}:
                self.by_file.setdefault(file, []).append(name)
        self.new: list[dict[str, str]] = []
        self.unmatched = 0

    def write(self, image: Path, tags: Mapping[str, float]) -> None:
        media = self._media(image)
        if media is None:
            self.unmatched += 1
            return
        if self.dry_run:
            self.say(f"{image}: {', '.join(tags)}")
        implied = {other for tag in tags for other in self.tree.implied.get(tag, ())}
        for tag, probability in tags.items():
            if tag not in implied:  # an observation is of the lowest taxon that is sure
                self.new.append(self._observation(media, tag, probability))

    def close(self) -> str:
        if not self.dry_run:
            self._save()
        would = "would be " if self.dry_run else ""
        sentence = f"{plural(len(self.new), 'observation')} {would}written to {self.options.out}"
        return sentence + (f"; {plural(self.unmatched, 'image')} not in the package." if self.unmatched else ".")

    def _media(self, image: Path) -> Mapping[str, str] | None:
        """By the path in the package; else by the name, if only one media file has it."""
        path = image.resolve().as_posix()
        names = self.by_file.get(image.name, [])
        exact = [name for name in names if path.endswith("/" + self.media[name]["filePath"].lstrip("./"))]
        found = exact or names
        return self.media[found[0]] if len(found) == 1 else None

    def _observation(self, media: Mapping[str, str], tag: str, probability: float) -> dict[str, str]:
        kind = OTHERS.get(tag.casefold(), tag.casefold())
        is_animal = kind not in (*KINDS, "blank")
        when = media.get("timestamp", "")
        return {
            "observationID": f"{self.options.classified_by}-{media['mediaID']}-{len(self.new) + 1}",
            "deploymentID": media.get("deploymentID", ""),
            "mediaID": media["mediaID"],
            "eventID": self.events.get(media["mediaID"], ""),
            "eventStart": when,
            "eventEnd": when,
            "observationLevel": "media",
            "observationType": "animal" if is_animal else kind,
            "scientificName": self.tree.path(tag)[-1] if is_animal and kind != "animal" else "",
            "classificationMethod": "machine",
            "classifiedBy": self.options.classified_by,
            "classificationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "classificationProbability": f"{probability:.4f}",
        }

    def _save(self) -> None:
        out, package = self.options.out, self.options.package
        kept = [row for row in self.observations if not self._is_ours(row)]
        columns = list(dict.fromkeys([*(name for row in self.observations[:1] for name in row), *COLUMNS]))
        out.mkdir(parents=True)
        for name in (PACKAGE, MEDIA, "deployments.csv"):
            if (package / name).is_file():
                shutil.copy2(package / name, out / name)
        with atomic_write(out / OBSERVATIONS) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows([*kept, *self.new])

    def _is_ours(self, row: Mapping[str, str]) -> bool:
        machine = row.get("classificationMethod") == "machine"
        return machine and row.get("classifiedBy") == self.options.classified_by

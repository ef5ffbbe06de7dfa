"""Camtrap DP, the exchange format of camera-trap projects: a package of CSV tables.

Observations are partial labels: what a person saw in a media file is present, everything is absent in one classified
as blank, and all else is unknown. A species implies `animal`, and the higher taxa that the package lists for it. What
was seen in an event of several media files is known only for the event; images of one event are one group. Version 1.0
is read, and those before, which have sequences instead of events.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from fewtags.data.annotations import Annotations, Finding
from fewtags.data.formats.locate import image_roots
from fewtags.data.formats.options import LabelFileOptions
from fewtags.data.formats.rows import Row, assemble
from fewtags.data.formats.text import load_json, read_text
from fewtags.data.tag_tree import SEPARATOR
from fewtags.errors import DataError, UserError
from fewtags.wording import plural

PACKAGE, MEDIA, OBSERVATIONS = "datapackage.json", "media.csv", "observations.csv"
TABLES = (MEDIA, OBSERVATIONS, "deployments.csv")
RANKS = ("phylum", "class", "order", "family", "genus")
KINDS = ("human", "vehicle")  # observation types that are tags themselves
Record = dict[str, str]


class CamtrapOptions(LabelFileOptions):
    machine: bool = False
    """Also read observations classified by a machine, as if a person had made them."""
    taxonomy: bool = True
    """Let a species imply the higher taxa that datapackage.json lists for it."""


def package_folder(path: Path) -> Path:
    """The folder of a package, from itself or from one of its files."""
    return path if path.is_dir() else path.parent


def detects_camtrap(path: Path) -> bool:
    if path.is_file() and path.name not in (PACKAGE, MEDIA, OBSERVATIONS):
        return False
    folder = package_folder(path)
    return all((folder / name).is_file() for name in (MEDIA, OBSERVATIONS))


def read_camtrap(path: Path, options: CamtrapOptions, images: Path | None) -> Annotations:
    folder = package_folder(path)
    media, observations = read_media(folder), read_table(folder / OBSERVATIONS, ("observationType",))
    taxa = higher_taxa(folder) if options.taxonomy else {}
    findings: list[Finding] = []
    rows = {one["mediaID"]: media_row(one, folder) for one in media.values()}
    events = events_of(media.values(), observations)
    media_in: dict[str, list[str]] = defaultdict(list)  # event -> its media
    for row_id, group in events.items():
        rows[row_id].group = group
        media_in[group].append(row_id)
    of_machines, of_events = 0, 0
    for number, seen in enumerate(observations, start=2):
        if seen.get("classificationMethod") == "machine" and not options.machine:
            of_machines += 1
            continue
        ids = [seen["mediaID"]] if seen.get("mediaID") else media_of_event(seen, media_in, media)
        if seen.get("mediaID") and seen["mediaID"] not in rows:
            message = f"there is no media file '{seen['mediaID']}'; the observation was skipped"
            findings.append(Finding("unknown media", f"{folder / OBSERVATIONS}:{number}", message))
            continue
        if len(ids) > 1 and seen["observationType"] != "blank":
            of_events += 1  # it was in one of them
            continue
        for one in ids:
            observe(rows[one], seen, taxa)
    annotations = assemble(
        list(rows.values()),
        file=folder / MEDIA,
        roots=image_roots(folder / MEDIA, images),
        options=options,
        name=folder.resolve().name,
        note=f"Read {folder} as Camtrap DP: observations of people are present, blank media have nothing",
        findings=findings,
        folder=images or folder,
    )
    if of_machines:
        annotations.notes.append(f"{plural(of_machines, 'observation')} of machines skipped (machine=true reads them).")
    if of_events:
        words = plural(of_events, "observation")
        annotations.notes.append(f"{words} of events with several media files skipped: which of them is not known.")
    return annotations


def media_row(media: Mapping[str, str], folder: Path) -> Row:
    """Files on the web are looked for by their name."""
    path = media["filePath"]
    image = media.get("fileName") or PurePosixPath(path).name if "://" in path else path
    return Row(image, f"{folder / MEDIA}", set(), id=media["mediaID"], listed=False)


def observe(row: Row, seen: Mapping[str, str], taxa: Mapping[str, list[str]]) -> None:
    kind, name = seen["observationType"], seen.get("scientificName", "")
    row.listed = True
    if kind == "blank":
        row.complete = True
    elif kind == "animal":
        row.present.add(SEPARATOR.join(["animal", *taxa.get(name, []), name]) if name else "animal")
    elif kind in KINDS:
        row.present.add(kind)


def higher_taxa(folder: Path) -> dict[str, list[str]]:
    """Scientific name -> the taxa above it, from the highest rank down."""
    if not (folder / PACKAGE).is_file():
        return {}
    listed = load_json(folder / PACKAGE, "the description of a data package")
    taxa = listed.get("taxonomic") if isinstance(listed, dict) else None
    found = {}
    for taxon in taxa if isinstance(taxa, list) else []:
        if isinstance(taxon, dict) and isinstance(name := taxon.get("scientificName"), str):
            ranks = (taxon.get(rank) for rank in RANKS)
            found[name] = [rank for rank in ranks if isinstance(rank, str) and rank and rank != name]
    return found


def events_of(media: Iterable[Mapping[str, str]], observations: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Media -> the event or sequence it belongs to: by its observations, else by its time."""
    media = list(media)
    found = {one["mediaID"]: one["sequenceID"] for one in media if one.get("sequenceID")}
    events: dict[str, set[tuple[float, float, str]]] = defaultdict(set)  # deployment -> start, end, event
    for seen in observations:
        event = seen.get("eventID") or seen.get("sequenceID") or ""
        if event and seen.get("mediaID"):
            found.setdefault(seen["mediaID"], event)
        if event and (start := seconds(seen.get("eventStart"))) and (end := seconds(seen.get("eventEnd"))):
            events[seen.get("deploymentID", "")].add((start, end, event))
    in_order = {deployment: sorted(times) for deployment, times in events.items()}
    for one in media:
        times, when = in_order.get(one.get("deploymentID", ""), []), seconds(one.get("timestamp"))
        if when is not None and one["mediaID"] not in found:
            last = bisect_right(times, when, key=lambda event: event[0])
            if last and times[last - 1][1] >= when:
                found[one["mediaID"]] = times[last - 1][2]
    known = {one["mediaID"] for one in media}
    return {name: event for name, event in found.items() if name in known}


def seconds(time: str | None) -> float | None:
    """Of an ISO 8601 time; None for anything else."""
    try:
        moment = datetime.fromisoformat(time or "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def media_of_event(
    seen: Mapping[str, str], media_in: Mapping[str, list[str]], media: Mapping[str, Record]
) -> list[str]:
    ids = media_in.get(seen.get("eventID") or seen.get("sequenceID") or "", [])
    deployment = seen.get("deploymentID")
    return [one for one in ids if not deployment or media[one].get("deploymentID", deployment) == deployment]


# --- the tables ---


def read_media(folder: Path) -> dict[str, Record]:
    """mediaID -> its row."""
    rows = read_table(folder / MEDIA, ("mediaID", "filePath"))
    twice = [name for name, count in Counter(row["mediaID"] for row in rows).items() if count > 1]
    if twice:
        raise DataError(f"{folder / MEDIA} has the mediaID '{twice[0]}' more than once.")
    return {row["mediaID"]: row for row in rows}


def read_table(file: Path, needed: tuple[str, ...]) -> list[Record]:
    """The rows of a table as its columns are named; missing values are ''."""
    return list(table_rows(file, read_text(file)[0], needed))


def table_rows(file: Path, text: str, needed: tuple[str, ...]) -> Iterator[Record]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [name for name in needed if name not in (reader.fieldnames or [])]
    if missing:
        raise UserError(f"{file} is not a table of Camtrap DP: it has no column '{missing[0]}'.")
    try:
        for row in reader:
            yield {name: clean_value(value) for name, value in row.items() if isinstance(name, str)}
    except csv.Error as error:
        raise DataError(f"{file}:{reader.line_num} cannot be read as CSV: {error}.") from None


def clean_value(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    return "" if text in ("NaN", "nan") else text

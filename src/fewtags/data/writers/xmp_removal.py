"""Takes out of .xmp sidecars what `fewtags predict --write xmp` put in, and nothing else: `fewtags untag`.

A keyword goes if fewtags:Predicted says that fewtags wrote it and no person has confirmed it since, by putting it
elsewhere in the tree of keywords or in a review. A list that has only what fewtags added goes, and a sidecar that
fewtags made and that nobody has changed since. What people removed stays noted as absent (fewtags:Rejected): it is
theirs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import ParseError, canonicalize

from fewtags.data.aliases import fold
from fewtags.data.image_files import is_image, is_raw
from fewtags.data.photo_keywords import sidecars
from fewtags.data.writers.beside import Beside, Update, folders_of
from fewtags.data.writers.xmp import NEW_FILE, recorded_items, start_of_new
from fewtags.data.writers.xmp_packet import FLAT, OTHER_TREES, TREES, KeywordList, Packet
from fewtags.data.xmp import FEWTAGS, Keywords, read_packet, recorded_path, split_path
from fewtags.errors import UserError
from fewtags.wording import plural

RECORDS = ("Predicted", "Probability", "Added")  # and Rejected, which is about what a person did
SHOWN = 5  # problems listed in the summary


@dataclass
class Removed:
    """What was taken out."""

    keywords: int = 0
    cleaned: int = 0  # sidecars
    deleted: int = 0
    problems: list[str] = field(default_factory=list)

    def sentence(self, dry_run: bool = False) -> str:
        would = "would be " if dry_run else ""
        parts = [
            f"{plural(self.keywords, 'keyword')} of fewtags {would}removed: {plural(self.cleaned, 'sidecar')} changed",
            f"{self.deleted:,} deleted that fewtags had made",
        ]
        if self.problems:
            more = f" and {len(self.problems) - SHOWN:,} more" if len(self.problems) > SHOWN else ""
            shown = "; ".join(self.problems[:SHOWN])
            parts.append(f"{len(self.problems):,} not changed because they cannot be read or written ({shown}{more})")
        return ", ".join(parts) + "."


def untag(
    paths: Sequence[Path],
    confirmed: Callable[[Path], Collection[str]] = lambda photo: (),
    *,
    forget: bool = False,
    dry_run: bool = False,
    say: Callable[[str], object] = print,
) -> Removed:
    """Clean the sidecars of these photos and folders. `confirmed` gives the tags a person has confirmed for a photo."""
    done, beside = Removed(), Beside(folders_of(paths), dry_run, say)
    for file in sidecars_in(paths):
        one = Removal(file, confirmed, forget)
        if beside.update(file, file, one.update):
            done.keywords += len(one.removed)
            done.deleted += one.alone
            done.cleaned += not one.alone
    done.problems = beside.tally.problems
    return done


@dataclass
class Removal:
    """What is taken out of one sidecar."""

    file: Path
    confirmed: Callable[[Path], Collection[str]]
    forget: bool
    removed: Sequence[str] = ()  # keywords
    alone: bool = False  # nothing is left of the sidecar

    def update(self) -> Update | None:
        data = self.file.read_bytes()
        if FEWTAGS.encode() not in data:
            return None
        photo = photo_of(self.file)
        kept = [] if photo is None else self.confirmed(photo)
        change = without_ours(data, kept, forget=self.forget)
        if not change.changed:
            return None
        self.removed = change.removed
        own = change.made and not self.file.is_symlink()
        self.alone = own and photo is not None and not kept and not says_more(data, photo, self.forget)
        what = f"{'delete; ' if self.alone else ''}- {', '.join(change.removed) or 'records'}"
        return Update(None if self.alone else change.packet, what)


def sidecars_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Sidecars as given, those of the given photos, and all below the given folders, once each."""
    seen: set[Path] = set()
    for path in paths:
        for file in _sidecars_at(path):
            if file not in seen:
                seen.add(file)
                yield file


def _sidecars_at(path: Path) -> Iterator[Path]:
    if path.is_dir():
        for folder, subfolders, files in os.walk(path):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            yield from (Path(folder) / name for name in sorted(files) if name.lower().endswith(".xmp"))
    elif not path.is_file():
        raise UserError(f"{path} does not exist.")
    elif path.suffix.lower() == ".xmp":
        yield path
    else:
        yield from sidecars(path)


def photo_of(sidecar: Path) -> Path | None:
    """a.jpg for a.jpg.xmp, for a.cr2.xmp next to both, and for a.xmp if no other picture may be meant."""
    full = sidecar.with_suffix("")
    if full.is_file() and not is_raw(full.name):
        return full
    stem = full.stem if full.is_file() else full.name
    same = [file for file in sorted(sidecar.parent.iterdir()) if file.stem == stem and is_image(file.name)]
    pictures = [file for file in same if not is_raw(file.name)] or same
    return pictures[0] if len(pictures) == 1 else None


@dataclass(frozen=True)
class Change:
    packet: bytes
    removed: list[str]
    changed: bool
    made: bool  # fewtags made the sidecar


def without_ours(data: bytes, confirmed: Collection[str] = (), *, forget: bool = False) -> Change:
    """A packet without what fewtags added. Raises MalformedXml."""
    before, packet = read_packet(data), Packet(data)
    keep = {fold(tag) for tag in confirmed}
    removed = [tag for tag in before.predicted if fold(tag) not in keep]
    made = NEW_FILE in before.added
    for place in (FLAT, *TREES):
        recorded = {fold(text) for text in recorded_items(packet, place, before)}
        take_out(packet, place, removed, recorded, keep)
        left = {fold(text) for text in packet.texts(place)}
        # Without what fewtags added, the list was not there. Copies stay in a sidecar that fewtags made and others use
        # now: programs prefer it to the photo, whose keywords they are.
        if not left or (left <= recorded and not made):
            packet.remove(place)
    for place in OTHER_TREES:
        take_out(packet, place, removed, {fold(text) for text in copied_by_programs(packet, place, before)}, keep)
        if not packet.texts(place):
            packet.remove(place)
    remove_records(packet, [] if forget else before.rejected)
    return Change(packet.to_bytes(), removed, packet.changed, made)


def remove_records(packet: Packet, rejected: list[str]) -> None:
    for name in RECORDS:
        packet.replace(FEWTAGS, name, [])
    packet.replace(FEWTAGS, "Rejected", rejected)
    packet.undeclare(FEWTAGS)


def take_out(
    packet: Packet, place: KeywordList, removed: Collection[str], recorded: Collection[str], keep: Collection[str]
) -> None:
    """Items that fewtags added for these tags. If animal is confirmed and dog is not, animal|dog becomes animal."""
    tags = {fold(tag) for tag in removed}
    gone = [text for text in packet.texts(place) if fold(text) in recorded and place.keyword(text) in tags]
    shorter = []
    for text in gone if place.separator else ():
        levels = text.split(place.separator)
        above = [levels[:depth] for depth in range(1, len(levels)) if fold(levels[depth - 1]) in keep]
        shorter += [place.separator.join(path) for path in above[-1:]]
    packet.change(place, shorter, {fold(text) for text in gone})


def copied_by_programs(packet: Packet, place: KeywordList, before: Keywords) -> list[str]:
    """Items in a list that fewtags does not write, at places where fewtags wrote: another program copied them."""
    ours = {recorded_path(item) for item in before.added} | {(fold(tag),) for tag in before.predicted}
    levels = {text: tuple(map(fold, split_path(text, place.separator))) for text in packet.texts(place)}
    return [text for text, path in levels.items() if path in ours]


def says_more(data: bytes, photo: Path, forget: bool) -> bool:
    """Would anything but what fewtags added, or copied from the photo, be lost with a sidecar that it made?"""
    before, packet = read_packet(data), Packet(data)
    for place in (FLAT, *TREES):
        packet.change(place, [], {fold(text) for text in recorded_items(packet, place, before)})
        if not packet.texts(place):
            packet.remove(place)
    remove_records(packet, [] if forget else before.rejected)
    try:
        return _same_form(packet.to_bytes()) != _same_form(Packet(start_of_new(photo)[0]).to_bytes())
    except ParseError:
        return True


def _same_form(packet: bytes) -> str:
    return canonicalize(packet.decode("utf-8").strip("\ufeff\0 \t\r\n"), strip_text=True)

"""`fewtags untag`: the keywords that fewtags wrote, out of the sidecars again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fewtags.data.writers.beside import alone_in, folders_of
from fewtags.data.writers.xmp_removal import untag
from fewtags.errors import UserError
from fewtags.labels import PRESENT


def remove_tags(paths: Sequence[Path], *, reviewed: Path | None, forget: bool, dry_run: bool) -> str:
    """Returns a sentence about what was removed."""
    confirmed: Callable[[Path], Collection[str]] = lambda photo: ()  # noqa: E731
    if reviewed is not None:
        confirmed = confirmed_in(reviewed)
    if missing := next((path for path in paths if not path.exists()), None):
        raise UserError(f"{missing} does not exist.")  # before a lock is put where it would be
    with alone_in(() if dry_run else folders_of(paths), "fewtags untag"):
        return untag(paths, confirmed, forget=forget, dry_run=dry_run).sentence(dry_run)


def confirmed_in(run: Path) -> Callable[[Path], Collection[str]]:
    """Photo -> the tags its reviewers have confirmed."""
    from fewtags.commands.apply import decisions_of
    from fewtags.engine.record import load_run_data

    root = load_run_data(run, None).train.root.resolve()
    tags: dict[Path, set[str]] = defaultdict(set)
    for decision in decisions_of(run):
        if decision.label == PRESENT:
            tags[(root / decision.image).resolve()].add(decision.tag)
    return lambda photo: tags.get(photo.resolve(), ())

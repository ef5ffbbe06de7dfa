"""`fewtags check`: how a dataset was read, all its problems, and likely duplicate tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtags.data.audit import Audit, audit
from fewtags.data.formats import read_annotations
from fewtags.data.proposals import propose_merges, write_proposals
from fewtags.progress import progress_bar, working


def check_data(
    data: Path, tags: Path | None, format: str, options: dict[str, Any], propose: Path | None = None
) -> tuple[Audit, str]:
    """The audit of a dataset, and a sentence about the file of proposed merges, if requested."""
    with working("Reading labels"):
        annotations = read_annotations(data, tags=tags, format=format, **options)
    wrote = ""
    if propose is not None:
        counts = dict(zip(annotations.categories, annotations.known_positives.tolist(), strict=True))
        proposals = propose_merges(counts)
        write_proposals(proposals, propose)
        wrote = f"{len(proposals)} proposed tag merges written to {propose}; edit it, then pass it as --aliases."
    with progress_bar("Reading images", len(annotations), unit="images") as bar:
        return audit(annotations, progress=bar.step), wrote

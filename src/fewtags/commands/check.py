"""`fewtags check`: how a dataset was read, all its problems, and likely duplicate tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtags.data.audit import Audit, audit
from fewtags.data.formats import read_annotations
from fewtags.data.proposals import must_be_new, write_proposals
from fewtags.progress import progress_bar, working
from fewtags.wording import plural


def check_data(
    data: Path, tags: Path | None, format: str, options: dict[str, Any], propose: Path | None = None
) -> tuple[Audit, str]:
    """The audit of a dataset, and a sentence about the file of proposed merges, if requested."""
    if propose is not None:
        must_be_new(propose)  # before minutes are spent on reading images
    with working("Reading labels"):
        annotations = read_annotations(data, tags=tags, format=format, **options)
    with progress_bar("Reading images", len(annotations), unit="images") as bar:
        result = audit(annotations, progress=bar.step)
    if propose is None:
        return result, ""
    write_proposals(result.proposals, propose)
    count = plural(len(result.proposals), "proposed tag merge")
    return result, f"{count} written to {propose}; edit it, then pass it as --aliases."

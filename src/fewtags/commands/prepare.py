"""`fewtags prepare`: images decoded and resized once, for runs that train the backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtags.data.formats import read_annotations
from fewtags.data.preprocess import InputConfig
from fewtags.data.store import ImageStore, changed_images, make_store, part_of, read_about
from fewtags.errors import UserError
from fewtags.progress import progress_bar


def prepare_images(
    data: Path,
    tags: Path | None,
    format: str,
    options: dict[str, Any],
    out: Path,
    size: int,
    *,
    workers: int | None = None,
    quiet: bool = False,
) -> str:
    """Create the store, or resume an interrupted one; returns a sentence about it."""
    annotations = read_annotations(data, tags=tags, format=format, **options)
    config = InputConfig(size=size)
    if out.exists():
        return still_good(out, annotations_changed=changed_images(ImageStore.open(out), annotations), size=size)
    resumes = part_of(out).is_dir()
    with progress_bar("Preparing images", len(annotations), quiet=quiet, unit="images") as bar:

        def started(there: int) -> None:
            if resumes and there:
                bar.say(f"{there} images are already prepared; resuming with the rest.")
            bar.skip(there)

        store = make_store(annotations, config, out, workers=workers, on_start=started, on_step=bar.step)
    broken = sum(bool(row.problem) for part in store.parts.values() for row in part.rows)
    gigabytes = sum(part.file.stat().st_size for part in store.parts.values()) / 1e9
    cropped, plain = (len(store.parts[part].rows) for part in ("train", "other"))
    return (
        f"{out}: {cropped} training images of {config.first_side} px and {plain} others of {size} px, "
        f"{gigabytes:.2g} GB"
        f"{f', {broken} unreadable' if broken else ''}. Use it with `fewtags train {data} data.store={out}"
        f"{f' input.size={size}' if size != InputConfig().size else ''}`."
    )


def still_good(out: Path, *, annotations_changed: Any, size: int) -> str:
    made_for = read_about(out)["size"]
    if made_for != size:
        raise UserError(f"{out} was prepared with --size {made_for}; choose another --out, or delete it first.")
    if annotations_changed:
        one = annotations_changed[0]
        raise UserError(
            f"{out} was made from other files: {len(annotations_changed)} images are new or changed ({one}, ...). "
            "Delete it and prepare it again, or choose another --out; runs read what it lacks from the files."
        )
    return f"{out} already has all of these images."

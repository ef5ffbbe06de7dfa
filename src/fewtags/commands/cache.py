"""`fewtags cache`: which features are kept, how large they are, and how to be rid of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from fewtags.engine.feature_spec import PLAIN
from fewtags.engine.feature_store import FeatureStore, ShelfSize
from fewtags.engine.features import cache_root
from fewtags.errors import UserError
from fewtags.train_settings import CacheConfig

DAY = 24 * 60 * 60.0


def open_store(folder: Path | None) -> FeatureStore:
    if folder is not None and not folder.is_dir():
        raise UserError(f"{folder} does not exist, so no features are kept there.")
    store = FeatureStore(cache_root(CacheConfig()) if folder is None else folder)
    if folder is not None and any(folder.iterdir()) and not store.index.is_file():
        raise UserError(f"{folder} is not a folder of kept features: it has no {store.index.name}.")
    return store


def table(store: FeatureStore) -> Iterator[Table | str]:
    shelves = store.shelves()
    if not shelves:
        yield f"{store.root} has no features yet; `fewtags train` and `fewtags predict` keep them there."
        return
    page = Table(title=f"Features in {store.root}", title_justify="left")
    for name in ("rows", "what", "image size", "backbone", "on disk", "last used"):
        page.add_column(name, justify="right" if name in ("rows", "on disk") else "left")
    for shelf in shelves:
        page.add_row(
            f"{shelf.rows:,}",
            what(shelf),
            f"{shelf.spec.size} px",
            shelf.spec.weights[:8],
            size(shelf.bytes),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(shelf.used)),
        )
    yield page
    yield (
        f"{size(sum(shelf.bytes for shelf in shelves))} in all. `fewtags cache --empty` removes it; what is needed is "
        "computed again."
    )


def what(shelf: ShelfSize) -> str:
    kind = "averages" if shelf.kind == "pooled" else "maps"
    return kind if shelf.spec.view == PLAIN else f"{kind} of augmented views"


def size(number: float) -> str:
    unit, factor = next((pair for pair in (("GB", 1e9), ("MB", 1e6)) if number >= pair[1]), ("KB", 1e3))
    return f"{number / factor:.1f} {unit}"


def as_json(store: FeatureStore) -> str:
    shelves = [
        {"rows": shelf.rows, "kind": shelf.kind, "view": "plain" if shelf.spec.view == PLAIN else "augmented",
         "size": shelf.spec.size, "weights": shelf.spec.weights, "bytes": shelf.bytes, "used": shelf.used}
        for shelf in store.shelves()
    ]  # fmt: skip
    return json.dumps({"folder": str(store.root), "features": shelves}, indent=1)


def empty(store: FeatureStore, unused_for: float | None) -> str:
    """Remove everything, or what was not used for so many days. Returns a sentence."""
    shelves = store.shelves()
    if unused_for is None:
        freed = sum(shelf.bytes for shelf in shelves)
        store.empty()
    else:
        old = [shelf for shelf in shelves if time.time() - shelf.used >= unused_for * DAY]
        freed = sum(shelf.bytes for shelf in old)
        store.drop([shelf.key for shelf in old])
    return f"Removed {size(freed)} of features from {store.root}."

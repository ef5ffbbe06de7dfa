"""FiftyOne itself, with its database: annotations there and back, through its own exporter; a tagger as its model."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import PROJECT
from fewtags import Annotations, Tagger
from fewtags.data.formats import read_annotations
from fewtags.errors import MissingExtra

GOLDEN = Path(__file__).parents[1] / "golden"

IN_FIFTYONE = """
import json, sys
import fiftyone as fo
from fewtags import Annotations, Tagger
from fewtags.data.formats import read_annotations

folder, golden = sys.argv[1:]
annotations = Annotations.load(f"{folder}/annotations.jsonl")
dataset = annotations.to_fiftyone("written")
back = Annotations.from_fiftyone(dataset)
back.save(f"{folder}/back.jsonl")
part = Annotations.from_fiftyone(dataset.match_tags("test"))

dataset.export(export_dir=f"{folder}/exported", dataset_type=fo.types.FiftyOneDataset, export_media=False)
again = fo.Dataset.from_dir(dataset_dir=f"{folder}/exported", dataset_type=fo.types.FiftyOneDataset)

model = Tagger.load(golden).to_fiftyone()
seen = fo.Dataset("pictures")
seen.add_images_dir(f"{golden}/../pictures")
seen.apply_model(model, label_field="fewtags", batch_size=2)
vectors = seen.compute_embeddings(model)
found = {
    sample.filepath: {tag.label: tag.confidence for tag in sample["fewtags"].classifications} for sample in seen
}
print(json.dumps({
    "count": len(again), "classes": dataset.default_classes, "part": len(part), "found": found,
    "labels": dataset.count_values("positive_labels.classifications.label"), "vectors": vectors.shape,
    "valid": isinstance(model, fo.core.models.Model) and model.has_embeddings,
}))
for name in ("written", "pictures", again.name):
    fo.delete_dataset(name)
"""


@pytest.fixture
def partial(patches) -> Annotations:
    labels = patches.labels.copy()
    labels[np.random.default_rng(0).random(labels.shape) < 0.4] = 0
    return Annotations(patches.root, patches.images, patches.categories, labels, patches.splits)


@pytest.fixture
def database(tmp_path) -> Iterator[str]:
    """FiftyOne's database, started here: FiftyOne itself waits only ten seconds for it."""
    found = list((PROJECT / ".venv-others" / "fiftyone").glob("lib/*/site-packages/fiftyone/db/bin/mongod"))
    if not found:
        pytest.skip("fiftyone is not installed in .venv-others; `make others` installs it")
    (tmp_path / "db").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [found[0], "--dbpath", tmp_path / "db", "--port", str(port), "--bind_ip", "127.0.0.1"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield f"mongodb://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_fiftyone_keeps_all_three_states_and_applies_a_tagger(partial, other_side, database, tmp_path):
    partial.save(tmp_path / "annotations.jsonl")
    home = {"HOME": str(tmp_path), "FIFTYONE_DO_NOT_TRACK": "true", "FIFTYONE_DATABASE_URI": database}
    home["FIFTYONE_DATABASE_VALIDATION"] = "false"  # this version is old, and works
    told = json.loads(other_side("fiftyone", IN_FIFTYONE, tmp_path, GOLDEN / "format-2", **home).splitlines()[-1])
    back = Annotations.load(tmp_path / "back.jsonl")
    np.testing.assert_array_equal(back.labels, partial.labels)
    assert back.categories == partial.categories == told["classes"]
    assert back.splits.tolist() == partial.splits.tolist()
    assert told["labels"] == dict(zip(partial.categories, partial.known_positives.tolist(), strict=True))
    assert (told["count"], told["part"], told["valid"]) == (48, 12, True)

    exported = read_annotations(partial.root, tags=tmp_path / "exported" / "samples.json")  # by FiftyOne's own exporter
    order = [exported.images.index(next(n for n in exported.images if n.endswith(name))) for name in partial.images]
    columns = [exported.categories.index(name) for name in partial.categories]
    np.testing.assert_array_equal(exported.labels[np.ix_(order, columns)], partial.labels)

    tagger = Tagger.load(GOLDEN / "format-2")
    for path, tags in told["found"].items():
        assert list(tags) == tagger.predict([path])[0]
    assert told["vectors"][0] == len(told["found"]) == len(list((GOLDEN / "pictures").glob("*.jpg")))


def test_without_fiftyone_it_is_said_what_to_install(partial, monkeypatch):
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    with pytest.raises(MissingExtra, match=r"fewtags\[fiftyone\]"):
        partial.to_fiftyone()
    with pytest.raises(MissingExtra, match=r"fewtags\[fiftyone\]"):
        Tagger.load(GOLDEN / "format-2").to_fiftyone()

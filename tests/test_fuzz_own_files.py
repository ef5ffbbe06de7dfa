"""Any bytes in any file that fewtags itself wrote give the object or a UserError of one line: never a traceback.

FEWTAGS_FUZZ=1000 tries so many inputs for each file instead of a few.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewtags.commands.predict import read_written
from fewtags.config import load_config
from fewtags.data.annotations import Annotations
from fewtags.data.decisions import DecidedLabel, read_decisions, write_decisions
from fewtags.engine.checkpoint import load_checkpoint
from fewtags.engine.onnx_tagger import ExportedTagger
from fewtags.engine.record import load_labels, load_run_config, load_run_data
from fewtags.engine.run_log import read_rows
from fewtags.errors import UserError
from fewtags.experiments.runs import read_run
from fewtags.models.saved import load_model, read_thresholds
from fewtags.models.tensor_files import read_arrays
from fewtags.models.words import find_word_vectors
from fewtags.review.store import DecisionStore, Draft

few = settings(  # the same inputs every time; FEWTAGS_FUZZ=1000 tries so many new ones
    derandomize="FEWTAGS_FUZZ" not in os.environ,
    max_examples=int(os.environ.get("FEWTAGS_FUZZ", "15")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
NASTY = [
    b"", b"\0", b"\xff\xfe", b"null", b"[]", b"{}", b'"', b"1e999", b"-1", b"9" * 400, b"NaN", b"{", b"[" * 2_000,
    b"\n",     b"!!python/object:os.system x", b"&a [*a, *a]", b"\\ud800", b"true", b"../../x", b": :", b"\t",
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Pieces cut out, doubled, flipped or replaced by nasty ones; cut off; or any bytes at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=200))
    if kind == 1:
        return valid[: draw(st.integers(0, len(valid)))]
    data = valid
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(data)))
        piece = draw(st.one_of(st.sampled_from(NASTY), st.binary(max_size=8)))
        data = data[:place] + piece + data[place + draw(st.integers(0, 12)) :]
    return data


def read_or_refused(read: Callable[[], object]) -> None:
    try:
        read()
    except UserError as error:
        refused = str(error)
        refused.encode()
        assert "\n" not in refused.strip("\n"), refused


@pytest.fixture(scope="module")
def run(trained, tmp_path_factory) -> Path:
    """Every file that a run has."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(trained, folder)
    return folder


READERS: dict[str, list[Callable[[Path], object]]] = {
    "model/config.json": [load_model],
    "model/labels.json": [load_model, read_thresholds],
    "model/model.safetensors": [load_model],
    "config.yaml": [load_run_config, read_run],
    "data.json": [load_run_data],
    "result.json": [read_run],
    "metrics.jsonl": [lambda folder: read_rows(folder / "metrics.jsonl"), read_run],
    "labels.npz": [load_labels],
    "predictions-test.npz": [lambda folder: read_arrays(folder / "predictions-test.npz", "probabilities")],
    "checkpoints/last.pt": [lambda folder: load_checkpoint(folder / "checkpoints" / "last.pt")],
}


@pytest.mark.parametrize("name", list(READERS))
@few
@given(data=st.data())
def test_a_run(name: str, run: Path, data: st.DataObject) -> None:
    file = run / name
    if not file.is_file():
        pytest.skip(f"a run has no {name}")
    valid = file.read_bytes()
    content = data.draw(damaged(valid))
    try:
        file.write_bytes(content)
        for read in READERS[name]:
            read_or_refused(lambda read=read: read(run))
    finally:
        file.write_bytes(valid)


@pytest.mark.parametrize("name", ["tags.csv", "tags.jsonl"])
@pytest.mark.parametrize("damaged_one", ["rows", "about"])
@few
@given(data=st.data())
def test_rows_of_predict(name: str, damaged_one: str, data: st.DataObject) -> None:
    rows = {
        "tags.csv": b'image,tags,probabilities,error\r\na.jpg,dog,0.9000,\r\n"b, c.jpg",,,\r\n',
        "tags.jsonl": b'{"image": "a.jpg", "tags": {"dog": 0.9}}\n{"image": "b.jpg", "tags": {}}\n',
    }[name]
    about = b'{"model": "x", "top": null}'
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        out.write_bytes(data.draw(damaged(rows)) if damaged_one == "rows" else rows)
        out.with_name(name + ".json").write_bytes(about if damaged_one == "rows" else data.draw(damaged(about)))
        read_or_refused(lambda: read_written(out, {"model": "x", "top": None}))


def annotations_file(folder: Path) -> Path:
    Annotations.from_tags(["a.jpg", "b.jpg"], [["dog"], ["cat"]], root=folder).save(folder / "saved.jsonl")
    return folder / "saved.jsonl"


def decisions_file(folder: Path) -> Path:
    write_decisions([DecidedLabel("a.jpg", "dog", 1, "ann"), DecidedLabel("b.jpg", "dog", -1)], folder / "d.jsonl")
    return folder / "d.jsonl"


def store_file(folder: Path) -> Path:
    with DecisionStore(folder / "decisions.sqlite") as store:
        store.append([Draft("a.jpg", "dog", 0, 1)], reviewer="ann", queue="missing", run="x")
    return folder / "decisions.sqlite"


def open_store(file: Path) -> None:
    with DecisionStore(file) as store:
        store.labels()


def words_file(folder: Path, suffix: str) -> Path:
    """Word vectors are not written by fewtags, but read in the same way."""
    file = folder / f"words{suffix}"
    if suffix == ".npz":
        np.savez(file, names=np.array(["dog", "cat"]), vectors=np.ones((2, 4)))
    elif suffix == ".npy":
        np.save(file, np.ones((2, 4)))
    else:
        file.write_text("dog 1 2 3 4\ncat 1 2 3 4\n")
    return file


def read_words(file: Path) -> object:
    return find_word_vectors(["dog", "cat"], str(file))


OTHERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "annotations": (annotations_file, Annotations.load),
    "decisions": (decisions_file, read_decisions),
    "words.npz": (lambda folder: words_file(folder, ".npz"), read_words),
    "words.npy": (lambda folder: words_file(folder, ".npy"), read_words),
    "words.txt": (lambda folder: words_file(folder, ".txt"), read_words),
    "store": (store_file, open_store),
    "settings": (lambda folder: write(folder / "x.yaml", b"method: an\ntrain:\n  lr: 0.1\n"), load_config),
}


def write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("name", list(OTHERS))
@few
@given(data=st.data())
def test_other_files(name: str, data: st.DataObject) -> None:
    make, read = OTHERS[name]
    with tempfile.TemporaryDirectory() as folder:
        file = make(Path(folder))
        file.write_bytes(data.draw(damaged(file.read_bytes())))
        read_or_refused(lambda: read(file))


@few
@given(data=st.data())
def test_exported_models(data: st.DataObject) -> None:
    """Also one whose network is whole and whose metadata is not."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    about = b'{"categories": ["a"], "thresholds": [0.5], "input": {"size": 8}}'
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 1]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    in_metadata = data.draw(st.booleans())
    text = data.draw(damaged(about)).decode(errors="replace") if in_metadata else about.decode()
    onnx.helper.set_model_props(model, {"fewtags": text})
    content = model.SerializeToString()
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder) / "x.onnx", content if in_metadata else data.draw(damaged(content)))
        read_or_refused(lambda: ExportedTagger(file))

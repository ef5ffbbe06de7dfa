"""Small made data that many tests share."""

from __future__ import annotations

import copy
import functools
import gc
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import typer.main
import typer.testing
import yaml
from PIL import Image

# torch is not imported here: the process that only hands out the tests would wait for it before it starts the others.
if TYPE_CHECKING:
    from fewtags.config import RunConfig
    from fewtags.data.annotations import Annotations

PROJECT = Path(__file__).parents[1]
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220)}

# The files that take longest, the longest first: begun last, they would be waited for.
LONGEST = (
    "review/test_page.py", "engine/test_training.py", "test_devices.py", "test_docs.py", "experiments/test_bench.py",
    "engine/test_ray.py", "test_update_command.py", "review/test_new_tags_page.py", "data/test_images.py",
    "export/test_export.py", "engine/test_torchrun.py", "review/test_new_tag_way.py", "test_apply_command.py",
    "data/test_fuzz_readers.py", "engine/test_several_processes.py", "review/test_killed_server.py",
    "models/test_hub.py", "test_predict_write.py", "test_sklearn.py", "methods/test_every_method.py",
    "export/test_timm.py", "review/test_store_damage.py", "test_tagger.py", "review/test_server.py",
    "models/test_names.py", "engine/test_features.py", "experiments/test_report.py", "test_kept.py",
    "test_damaged_files.py", "test_untag_command.py", "test_example.py", "test_predict_archive.py",
    "test_tagger_inputs.py", "engine/test_thresholds.py", "models/test_few_photos.py", "test_photo_programs.py",
)  # fmt: skip

# Files that need the same slow start run in one of the test processes, which makes it once: processes forked from one
# that has imported everything, and torch's exporter. Any other file goes to whichever process is free.
FORKING = (
    "review/test_page.py", "review/test_new_tags_page.py", "review/test_killed_server.py", "review/test_command.py",
    "experiments/test_bench.py", "engine/test_several_processes.py", "methods/test_label_state_ranks.py",
    "methods/test_two_processes.py", "methods/test_category_adaptive.py", "models/test_start_ranks.py",
    "engine/test_feature_store.py", "engine/test_torchrun.py", "data/test_writers.py", "test_bad_input.py",
)  # fmt: skip
EXPORTING = (
    "test_docs.py", "export/test_export.py", "export/test_imgutils.py", "export/test_without_torch.py",
    "review/test_new_tag_way.py", "test_tree_command.py",
)  # fmt: skip
GROUPS = {**dict.fromkeys(FORKING, "forking"), **dict.fromkeys(EXPORTING, "exporting")}

# Imports make half a million objects that stay. To look through them for garbage takes a fifth of the time to collect
# the tests, and it would be done again in many a test.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Grouped(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return GROUPS.get(file.removeprefix("tests/"), file)

    return Grouped(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {PROJECT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    gc.enable()
    gc.set_threshold(5000)  # as `fewtags` itself has it: at Python's 700 it looks seven times as often
    gc.freeze()


def pytest_unconfigure() -> None:
    # The process ends. To look through all of its objects again, as pytest and Python do five times, takes 3 seconds.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What runs keep for later runs stays among the test's files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def done_once() -> Iterator[None]:
    """Each call of a command in this process would build all commands from their functions, and parse the same
    settings of the same few runs: together as much work as what the tests are about."""
    parse, parsed = yaml.safe_load, dict[str, Any]()

    def load(text: Any) -> Any:
        if not isinstance(text, str):
            return parse(text)
        if text not in parsed:
            parsed[text] = parse(text)
        return copy.deepcopy(parsed[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "safe_load", load)
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        patch.setattr(typer.testing, "_get_command", typer.main.get_command)
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_works() -> None:
    """A shell starts background jobs with SIGINT ignored; tests of Ctrl-C and the processes they start need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The measuring data beside the project; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("FEWTAGS_SHARED", PROJECT.parent / "shared"))
    if not (folder / "data" / "VOCdevkit").is_dir():
        pytest.skip(f"the measuring data is not in {folder}")
    return folder


@pytest.fixture(scope="session")
def other_side() -> Callable[..., str]:
    """Runs a script in another project's environment and returns what it prints; skips the test if it is missing."""

    def run(name: str, script: str, *arguments: object, **environment: str) -> str:
        folder = PROJECT / ".venv-others" / name
        if not (folder / ".ready").is_file():
            pytest.skip(f"{name} is not installed in {folder.relative_to(PROJECT)}; `make others` installs it")
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        words = [str(python), "-c", script, *map(str, arguments)]
        ran = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran.stdout

    return run


@pytest.fixture(scope="session")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Annotations:
    """36 training and 12 test images of noise with coloured patches; the tags are the colours. Labels are complete."""
    from fewtags.data.annotations import Annotations

    root = tmp_path_factory.mktemp("patches")
    rng = np.random.default_rng(0)
    images, tags = [], []
    for number in range(48):
        pixels = rng.integers(90, 160, (40, 40, 3), dtype=np.uint8)
        present = [name for name in COLOURS if rng.random() < 0.5]
        for name in present:
            left, top = rng.integers(0, 26, 2)
            pixels[top : top + 12, left : left + 12] = COLOURS[name]
        Image.fromarray(pixels).save(root / f"{number:02d}.png")
        images.append(f"{number:02d}.png")
        tags.append(present)
    splits = ["train"] * 36 + ["test"] * 12
    return Annotations.from_tags(
        images, tags, root=root, categories=list(COLOURS), splits=splits, complete=True, name="patches"
    )


class TinyConfig:
    """Settings of a run that takes a second: a small backbone from random weights, 32 px, two epochs."""

    @staticmethod
    def make(*overrides: str) -> RunConfig:
        from fewtags.config import load_config

        settings = (
            "method=an", "model.backbone=test_resnet", "model.pretrained=false", "input.size=32", "train.epochs=2",
            "train.batch_size=8", "train.workers=0", "words.dim=8", "data.known=0.6",
        )  # fmt: skip
        return load_config(None, [*settings, *overrides])


class Answer(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line in this process: `cli("predict", run, image)`. A bug of ours raises through it."""
    from fewtags.cli import main

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fewtags", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def tags_file(patches: Annotations) -> Path:
    """The tags of `patches` as a person would write them: a CSV beside the images, with a split column."""
    file = patches.root / "tags.csv"
    lines = ["image,tags,split"]
    for image, split, row in zip(patches.images, patches.splits, patches.labels, strict=True):
        tags = ";".join(name for name, label in zip(patches.categories, row, strict=True) if label == 1)
        lines.append(f"{image},{tags},{split}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


TINY = (
    "method=an", "model.backbone=test_resnet", "model.pretrained=false", "input.size=32", "train.epochs=1",
    "train.batch_size=12", "train.workers=0", "words.dim=8",
)  # fmt: skip


@pytest.fixture(scope="session")
def trained(patches: Annotations, tags_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on `patches`, as `fewtags train` leaves it. Read it, or copy it first."""
    from fewtags.config import load_config
    from fewtags.engine.training import train

    folder = tmp_path_factory.mktemp("runs") / "trained"
    source = {"source": str(patches.root), "tags": str(tags_file), "options": {"complete": True}}
    train(load_config(None, TINY, data=source), folder, quiet=True)
    return folder


@pytest.fixture(scope="session")
def some_tags(patches: Annotations, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two thirds of the tags of `patches`, and nothing else, as people have them: no splits, nothing complete."""
    file = tmp_path_factory.mktemp("some") / "tags.csv"
    random = np.random.default_rng(0)
    lines = ["photographer,image,tags"]
    for image, row in zip(patches.images, patches.labels, strict=True):
        names = [name for name, label in zip(patches.categories, row, strict=True) if label == 1]
        lines.append(f"Ann,{image},{';'.join(name for name in names if random.random() < 0.66)}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def partly_tagged(patches: Annotations, some_tags: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of `instant` on `some_tags`. Read it, or copy it first."""
    from fewtags.config import load_config
    from fewtags.engine.training import train

    folder = tmp_path_factory.mktemp("runs") / "partly-tagged"
    settings = [value for value in TINY if not value.startswith("method=")]
    data = {"source": str(patches.root), "tags": str(some_tags)}
    train(load_config(None, [*settings, "method=instant"], data=data), folder, quiet=True)
    return folder


@pytest.fixture(scope="session")
def traced_once() -> Iterator[None]:
    """The same model is traced for ONNX once, however often it is exported: that takes longer than the rest."""
    from fewtags.export import onnx_file
    from fewtags.models.tensor_files import add_tensors

    write_onnx, kept = onnx_file.write_onnx, dict[str, bytes]()

    def write(model: Any, file: Path, size: int) -> None:
        digest = hashlib.sha256(f"{size} {model}".encode())
        add_tensors(digest, dict(model.named_parameters()) | dict(model.named_buffers()))
        if digest.hexdigest() not in kept:
            write_onnx(model, file, size)
            kept[digest.hexdigest()] = file.read_bytes()
        file.write_bytes(kept[digest.hexdigest()])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "write_onnx", write)
        yield


# --- a review of made images (tests/review; a conftest of its own would hide this one) ---


@pytest.fixture
def open_session(tmp_path: Path):
    """Open a session on the same store, as often as one likes."""
    from made_review import made_data

    from fewtags.review.session import ReviewSession
    from fewtags.review.store import DecisionStore, decisions_file

    def opened(num_images: int = 400, **options) -> ReviewSession:
        annotations, features = made_data(num_images)
        store = DecisionStore(decisions_file(tmp_path))
        return ReviewSession(annotations, features, store, run="made", reviewer="ann", **options)

    return opened


@pytest.fixture
def session(open_session):
    return open_session()

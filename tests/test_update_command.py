"""`fewtags update`: a run follows its archive."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from conftest import Cli
from fewtags.commands import update as commands
from fewtags.data.folder_scan import Changes, Snapshot, changes_between, look
from fewtags.engine import features
from fewtags.engine.record import load_labels
from fewtags.models.saved import load_model

XMP = ("--write", "xmp", "--threshold", "0", "-o", "marker=auto")
SETTINGS = ("model.backbone=test_resnet", "model.pretrained=false", "model.train_from=head", "input.size=32")


class Archive:
    """36 photos with a tags.csv beside them, and 12 that come later."""

    def __init__(self, cli: Cli, patches, folder: Path):
        self.cli, self.patches, self.folder = cli, patches, folder
        self.photos, self.run = folder / "photos", folder / "run"
        self.rows = list(range(36))
        if self.run.exists():
            return
        self.photos.mkdir(parents=True)
        for row in self.rows:
            self.add(row)
        self.write_tags()
        data = ("train", self.photos, "--tags", self.tags, *SETTINGS, f"cache.folder={folder / 'cache'}")
        answer = cli(*data, "--method", "instant", "--out", self.run, "-q")
        assert answer.code == 0, answer.err

    @property
    def tags(self) -> Path:
        return self.photos / "tags.csv"

    def add(self, row: int, name: str = "") -> Path:
        return Path(shutil.copy(self.patches.path(row), self.photos / (name or self.patches.images[row])))

    def write_tags(self, rows: list[int] | None = None) -> None:
        names = self.patches.categories
        with self.tags.open("w") as out:
            print("image,tags", file=out)
            for row in self.rows if rows is None else rows:
                tags = [names[c] for c in np.flatnonzero(self.patches.labels[row] == 1)]
                print(f"{self.patches.images[row]},{';'.join(tags)}", file=out)

    def predictions(self, out: Path) -> str:
        """Of a photo, by the model alone."""
        answer = self.cli("predict", self.run, self.patches.path(44), "--as-new", "--all-scores", "--out", out, "-q")
        assert answer.code == 0, answer.err
        return out.read_text(encoding="utf-8")

    def update(self, *options: object):
        answer = self.cli("update", self.run, self.photos, *options)
        assert answer.code == 0, answer.err
        return answer


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("archives")


@pytest.fixture
def archive(cli: Cli, patches, places: Path) -> Archive:
    """As it was trained once, and always in the same folder, because a run knows where its photos are."""
    folder, kept = places / "archive", places / "as-trained"
    shutil.rmtree(folder, ignore_errors=True)
    if not kept.exists():
        Archive(cli, patches, folder)
        folder.rename(kept)
    shutil.copytree(kept, folder)
    return Archive(cli, patches, folder)


class Updated(NamedTuple):
    """What an update leaves."""

    fitted: dict[str, np.ndarray]
    sidecars: dict[str, bytes]

    @classmethod
    def of(cls, archive: Archive) -> Updated:
        presence = load_model(archive.run).classifier.head.presence
        fitted = {name: np.asarray(getattr(presence, name)) for name in ("weights", "bias", "slope", "thresholds")}
        return cls(fitted, {file.name: file.read_bytes() for file in archive.photos.glob("*.xmp")})


def add_two(archive: Archive) -> None:
    """Photos, of which one has tags already."""
    for row in (40, 41):
        archive.add(row)
    archive.rows.append(41)
    archive.write_tags()


@pytest.fixture
def uninterrupted(cli: Cli, patches, archive: Archive, places: Path, expected: list[Updated]) -> Updated:
    """What the update of another copy leaves that nobody stops; done once."""
    if not expected:
        whole = Archive(cli, patches, places / "whole")
        add_two(whole)
        whole.update(*XMP)
        expected.append(Updated.of(whole))
    return expected[0]


@pytest.fixture(scope="module")
def expected() -> list[Updated]:
    return []


def tagged(file: Path) -> list[str]:
    with file.open() as rows:
        return sorted(Path(row["image"]).name for row in csv.DictReader(rows))


def test_new_photos_are_tagged_once(archive, tmp_path, monkeypatch):
    archive.update()  # there is nothing new
    new = [archive.add(row) for row in range(36, 40)]
    computed = []
    original = features.Wanted._compute
    monkeypatch.setattr(
        features.Wanted, "_compute", lambda self, missing: computed.append(missing.sum()) or original(self, missing)
    )
    answer = archive.update("--out", tmp_path / "tags.csv", "-q")
    assert answer.out == ""
    assert tagged(tmp_path / "tags.csv") == sorted(file.name for file in new)
    assert sum(computed) == 4
    assert len(load_labels(archive.run).images) == 40
    assert "Nothing has changed" in archive.update("--out", tmp_path / "tags.csv").out


def test_it_says_in_one_paragraph_what_changed(archive, tmp_path):
    archive.update()
    archive.add(40)
    archive.add(41, "02.png")
    (archive.photos / "2024").mkdir()
    (archive.photos / "03.png").rename(archive.photos / "2024" / "03.png")
    (archive.photos / "04.png").unlink()
    archive.rows = [row for row in archive.rows if row not in (3, 4)] + [40]
    archive.write_tags()
    with archive.tags.open("a") as out:
        print("05.png,sledge\n06.png,sledge\n07.png,sledge", file=out)
    answer = archive.update("--out", tmp_path / "tags.csv")
    text = " ".join(answer.out.split())
    assert f"1 new photo, 1 changed, 1 moved, 1 removed in {archive.photos}." in text
    assert "learned of" in text
    assert "new: sledge" in text
    assert "Fitted again to" in text
    assert "2 photos tagged." in text
    assert "sledge" in load_model(archive.run).categories
    assert tagged(tmp_path / "tags.csv") == ["02.png", "40.png"]


def test_new_tags_are_learned(archive):
    few = list(range(12))
    archive.write_tags(few)
    archive.update()
    before = load_model(archive.run).classifier.head.presence.weights.clone()
    archive.write_tags()
    assert "Fitted again to" in archive.update().out
    assert not np.allclose(load_model(archive.run).classifier.head.presence.weights, before)
    assert archive.cli("discover", archive.run, "-q").code == 0  # the record of the run is that of its new data
    assert "Nothing has changed" in archive.update().out


def test_keywords_that_it_wrote_are_no_new_labels(archive):
    archive.add(40)
    first = archive.update(*XMP)
    assert "1 photo tagged." in first.out
    assert (archive.photos / "40.png.xmp").is_file()
    assert "Nothing has changed" in archive.update(*XMP).out


def test_photos_without_a_probable_tag_are_not_called_tagged(archive, tmp_path):
    archive.add(40)
    archive.add(41)
    (archive.photos / "42.png").write_bytes(b"no picture")
    answer = archive.update("--out", tmp_path / "tags.csv", "--threshold", "1")
    text = " ".join(f"{answer.out} {answer.err}".split())
    assert "0 photos tagged, 2 without a tag that is probable enough." in text
    assert "1 photo could not be read." in text
    with (tmp_path / "tags.csv").open() as rows:
        assert [row["tags"] for row in csv.DictReader(rows)] == ["", "", ""]


def test_photos_that_were_not_tagged_are_not_forgotten(archive, tmp_path):
    archive.add(40)
    assert "1 photo not tagged yet" in archive.update().out
    assert "Nothing has changed" in archive.update().out
    archive.update("--out", tmp_path / "tags.csv")
    assert tagged(tmp_path / "tags.csv") == ["40.png"]
    assert "Nothing has changed" in archive.update("--out", tmp_path / "tags.csv").out


def test_an_unreadable_photo_is_a_warning_also_when_quiet(archive, tmp_path):
    (archive.photos / "99.jpg").write_bytes(b"no picture")
    answer = archive.update("--out", tmp_path / "tags.csv", "-q")
    assert answer.out == ""
    assert "1 photo could not be read." in answer.err


def test_a_method_that_trains_is_not_trained_by_the_way(cli, archive, tmp_path):
    data = ("train", archive.photos, "--tags", archive.tags, *SETTINGS, "--method", "an", "--epochs", "1")
    assert cli(*data, "--out", tmp_path / "trained", "-q").code == 0
    model = (tmp_path / "trained" / "model" / "model.safetensors").read_bytes()
    archive.add(40)
    text = cli("update", tmp_path / "trained", archive.photos, "--out", tmp_path / "tags.csv").out
    assert "Method 'an' trains, so the model stays as it is" in text
    assert tagged(tmp_path / "tags.csv") == ["40.png"]
    assert (tmp_path / "trained" / "model" / "model.safetensors").read_bytes() == model
    assert "Nothing has changed" in cli("update", tmp_path / "trained", archive.photos).out


@pytest.mark.parametrize("left", ["an empty folder", "nothing"])
def test_a_disk_that_is_not_mounted_is_no_archive_without_photos(archive, left):
    """Or a night without the disk would forget what was learned, and tag everything as new when it is back."""
    archive.update(*XMP)
    result = (archive.run / "result.json").read_bytes()
    archive.photos.rename(archive.folder / "away")
    if left == "an empty folder":
        archive.photos.mkdir()
    answer = archive.cli("update", archive.run, archive.photos, *XMP, "-q")
    assert answer.code == 3
    assert "Is its disk mounted?" in answer.err
    if left == "an empty folder":
        archive.photos.rmdir()
    (archive.folder / "away").rename(archive.photos)
    assert "Nothing has changed" in archive.update(*XMP).out
    assert (archive.run / "result.json").read_bytes() == result
    assert not list(archive.photos.glob("*.xmp"))


def test_a_folder_for_new_photos_may_be_empty(archive, tmp_path):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    shutil.copy(archive.patches.path(40), inbox / "40.png")
    assert "1 new photo in" in archive.cli("update", archive.run, inbox, *XMP).out
    for file in inbox.iterdir():
        file.unlink()
    answer = archive.cli("update", archive.run, inbox, *XMP)
    assert (answer.code, answer.err.count("disk")) == (0, 0)
    assert "1 removed photo in" in answer.out


def test_an_update_that_failed_does_not_say_what_the_next_one_sees(archive):
    """Here the label file is damaged while there is a new photo, and is mended when there are two."""
    archive.update(*XMP)
    archive.add(40)
    tags = archive.tags.read_text()
    archive.tags.write_text("")
    assert archive.cli("update", archive.run, archive.photos, *XMP, "-q").code != 0
    archive.tags.write_text(tags)
    archive.add(41)
    assert "2 new photos in" in archive.update(*XMP).out
    assert sorted(file.name for file in archive.photos.glob("*.xmp")) == ["40.png.xmp", "41.png.xmp"]


# Of 31 files that are put in place: the plan, the refitted run, its files in RUN, tags, and what was seen.
KILLS = (1, 2, 4, 17, 20, 22, 26, 28, 29, 30, 31)


@pytest.mark.parametrize("stopped_at", KILLS)
def test_killed_anywhere_and_started_again_the_result_is_the_same(stopped_at, archive, uninterrupted, monkeypatch):
    """Stopped before the nth file is put in place, by what no `except` catches."""
    add_two(archive)

    class Killed(BaseException):
        pass

    count, original = [0], os.replace

    def replace(source, target, **more):
        if str(archive.folder) in str(target):
            count[0] += 1
            if count[0] == stopped_at:
                raise Killed
        return original(source, target, **more)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", replace)
        patch.setattr(Path, "replace", lambda self, target: replace(self, target) and Path(target))
        archive.cli("update", archive.run, archive.photos, *XMP, "-q")
    archive.update(*XMP)
    assert "Nothing has changed" in archive.update(*XMP).out
    assert sorted(load_labels(archive.run).images) == sorted(file.name for file in archive.photos.glob("*.png"))
    assert not (archive.run / "update" / "plan.json").exists()
    assert not (archive.run / "update" / "next").exists()
    ours = Updated.of(archive)
    for name, value in uninterrupted.fitted.items():
        np.testing.assert_array_equal(ours.fitted[name], value)
    assert sorted(ours.sidecars) == ["40.png.xmp", "41.png.xmp"]
    assert ours.sidecars == uninterrupted.sidecars


def test_killed_while_it_installs_the_run_has_a_model(archive, tmp_path, monkeypatch):
    """A folder cannot replace another in one step: killed in between, also twice, whoever uses the run finds the old
    model, and the next update installs the new one."""

    class Killed(BaseException):
        pass

    def replace(path, target):
        if Path(target) == archive.run / "model":
            raise Killed
        os.replace(path, target)

    before = archive.predictions(tmp_path / "before.csv")
    archive.rows.append(41)
    archive.add(41)
    archive.write_tags()
    for number in range(2):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Path, "replace", replace)
            archive.cli("update", archive.run, archive.photos, "-q")
        assert archive.predictions(tmp_path / f"{number}.csv") == before
    archive.update()
    assert (archive.run / "model").is_dir()
    assert not (archive.run / "update" / "old-model").exists()
    assert archive.predictions(tmp_path / "after.csv") != before


def test_temporary_files_of_a_killed_update_are_gone_after_the_next(archive):
    """Also if that comes at once: nobody else can be using them."""
    archive.update()
    left = archive.run / "update" / ".fewtags-0123456789abcdef.part"
    left.write_text("half of")
    archive.add(40)
    archive.update()
    assert not left.exists()


def test_killed_while_it_cleans_up_the_next_one_does(archive, monkeypatch):
    archive.add(40)

    class Killed(BaseException):
        pass

    unlink = Path.unlink

    def killed(path, missing_ok=False):
        if path.name == "plan.json":
            raise Killed
        return unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "unlink", killed)
        archive.cli("update", archive.run, archive.photos, *XMP, "-q")
    archive.update(*XMP)
    assert sorted(file.name for file in (archive.run / "update").iterdir()) == ["seen.npz"]
    assert "Nothing has changed" in archive.update(*XMP).out


def test_without_changes_it_ends_before_torch_is_imported(archive):
    archive.update()
    script = "import sys; sys.argv[0] = 'fewtags'; from fewtags.cli import main\ntry:\n main()\n"
    script += "finally:\n print('torch' in sys.modules)"
    words = [sys.executable, "-c", script, "update", archive.run, archive.photos]
    ran = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert "Nothing has changed" in ran.stdout
    assert ran.stdout.endswith("False\n"), ran.stdout + ran.stderr


def test_the_first_line_comes_before_any_work(archive, monkeypatch, capsys):
    """On standard error; with --quiet there is none."""
    said: list[str] = []
    monkeypatch.setattr(commands.State, "is_current", lambda *_: said.append(capsys.readouterr().err) or True)
    commands.update(archive.run, [archive.photos], commands.Tagging())
    commands.update(archive.run, [archive.photos], commands.Tagging(), quiet=True)
    assert said == [f"Looking for changes in {archive.photos}.\n", ""]


def test_what_is_besides_is_not_looked_at_by_whatever_name(tmp_path):
    for name in ("photos/a.jpg", "photos/run/b.jpg", "photos/tags.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "photos", target_is_directory=True)
    besides = [tmp_path / "link" / "run", tmp_path / "link" / "tags.csv", tmp_path / "nowhere"]
    assert look([tmp_path / "photos"], besides=besides).paths == [str(tmp_path / "photos" / "a.jpg")]


def seconds_of(work) -> float:
    """Of the processor, the best of three."""
    took = []
    for _ in range(3):
        started = time.process_time()
        work()
        took.append(time.process_time() - started)
    return min(took)


def test_a_look_at_many_photos_is_quick(tmp_path):
    for number in range(5000):
        (tmp_path / f"{number}.jpg").touch()
    plainly = seconds_of(lambda: [os.stat(tmp_path / f"{number}.jpg") for number in range(5000)])
    snapshot = look([tmp_path])
    assert seconds_of(lambda: look([tmp_path])) < 10 * plainly  # 2.5 s for 100,000 on a slow core
    assert look([tmp_path]) == snapshot
    snapshot.save(tmp_path / "seen.npz", {"photos": ["a", "b"]})
    assert Snapshot.load(tmp_path / "seen.npz") == (snapshot, {"photos": ["a", "b"]})


def test_a_moved_photo_is_recognised_by_inode_or_by_name(tmp_path):
    before = Snapshot.of(
        {"/a/1.jpg": (10, 5, 7), "/a/2.jpg": (10, 6, 8), "/a/3.jpg": (10, 7, 9), "/a/t.csv": (1, 1, 1)}
    )
    after = Snapshot.of(
        {"/b/one.jpg": (10, 5, 7), "/c/2.jpg": (10, 6, 99), "/c/3.jpg": (11, 7, 9), "/a/t.csv": (1, 1, 1)}
    )
    assert changes_between(before, after) == Changes(
        ["/c/3.jpg"], [], {"/b/one.jpg": "/a/1.jpg", "/c/2.jpg": "/a/2.jpg"}, ["/a/3.jpg"], False
    )
    assert changes_between(before, before) == Changes()

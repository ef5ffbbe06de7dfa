"""A store that lost or changed something says so, or has it again: never fewer decisions in silence."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fewtags.errors import UserError
from fewtags.review.store import Decision, DecisionStore, Draft

NUMBER = 60
LINES = "decisions.sqlite-sealed.jsonl"


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """The files of a store whose process was killed: some decisions are only in the -wal file."""
    folder, place = tmp_path_factory.mktemp("open"), tmp_path_factory.mktemp("killed")
    with DecisionStore(folder / "decisions.sqlite") as store:
        for number in range(NUMBER):
            drafts = [Draft(f"folder/{number}.jpg", "Bär", 0, 1), Draft(f"folder/{number}.jpg", "dog", 0, -1)]
            store.append(drafts, reviewer="ann", queue="missing", run="r")
            if number == NUMBER // 2:
                sqlite3.connect(store.file).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        store.undo(store.last_step(), reviewer="bob")
        for file in folder.iterdir():
            shutil.copy(file, place)
    (place / "decisions.sqlite-shm").unlink(missing_ok=True)
    return place


@pytest.fixture
def files(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "store")
    return tmp_path / "store"


def rows(folder: Path, **how: bool) -> list[Decision]:
    with DecisionStore(folder / "decisions.sqlite", **how) as store:
        return list(store)


def test_a_killed_store_has_everything(files):
    assert len(rows(files, read_only=True)) == 2 * NUMBER + 2
    assert len(rows(files)) == 2 * NUMBER + 2


@pytest.mark.parametrize("name", ["decisions.sqlite", "decisions.sqlite-wal", LINES])
@pytest.mark.parametrize("read_only", [True, False])
def test_after_a_flipped_bit_everything_is_there_or_it_is_said(killed, name, read_only, tmp_path, monkeypatch):
    """300 flips in the database, the -wal file and the second copy."""
    monkeypatch.setattr("fewtags.review.store.PATIENCE", 0.0)
    rng, all_rows = random.Random(f"{name} {read_only}"), rows(shutil.copytree(killed, tmp_path / "whole"))
    content = bytearray((killed / name).read_bytes())
    said = 0
    for turn in range(50):
        folder = shutil.copytree(killed, tmp_path / str(turn))
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(damaged)
        try:
            found = rows(folder, read_only=read_only)
        except UserError:
            said += 1
        else:
            assert found == all_rows
    assert said == 0 or name != LINES  # the second copy is needed only if the first is damaged


@pytest.mark.parametrize("what", ["no -wal", "emptied", "gone", "older copy"])
def test_lost_decisions_are_put_back_and_a_reader_is_told(files, killed, what):
    all_rows = rows(shutil.copytree(killed, files.parent / "whole"))
    file = files / "decisions.sqlite"
    if what == "no -wal":
        (files / "decisions.sqlite-wal").unlink()
    elif what == "emptied":
        file.write_bytes(b"")
        (files / "decisions.sqlite-wal").unlink()
    elif what == "gone":
        file.unlink()
        (files / "decisions.sqlite-wal").unlink()
    else:
        shutil.copy(killed / "decisions.sqlite", file)
        (files / "decisions.sqlite-wal").unlink()
    with pytest.raises(UserError, match=r"are missing|is missing|cannot be used"):
        DecisionStore(file, read_only=True)
    with DecisionStore(file) as store:
        assert list(store) == all_rows
        assert store.restored
        store.append([Draft("new.jpg", "dog", 0, 1)], reviewer="ann", queue="missing", run="r")
    assert len(rows(files, read_only=True)) == len(all_rows) + 1


def test_what_cannot_be_put_back_is_counted_and_named(files):
    (files / "decisions.sqlite-wal").unlink()
    lines = (files / LINES).read_bytes().splitlines(keepends=True)
    (files / LINES).write_bytes(b"".join(lines[:80] + lines[100:]))  # and the second copy has a gap
    with pytest.raises(UserError, match=r"has 62 decisions, but 122 were saved: number 63 to .*") as reader:
        DecisionStore(files / "decisions.sqlite", read_only=True)
    assert "'Bär' of folder/31.jpg" in str(reader.value)
    with pytest.raises(UserError, match=r"number 81 to 122 are missing.*or remove .* to continue without them"):
        DecisionStore(files / "decisions.sqlite")
    (files / LINES).unlink()
    assert len(rows(files)) == 62


def test_an_empty_file_alone_is_no_new_store(tmp_path):
    (tmp_path / "decisions.sqlite").write_bytes(b"")
    for read_only in (True, False):
        with pytest.raises(UserError, match="is empty, and so has lost its decisions"):
            DecisionStore(tmp_path / "decisions.sqlite", read_only=read_only)


def test_a_changed_decision_is_named(files):
    with DecisionStore(files / "decisions.sqlite"):
        pass
    other = sqlite3.connect(files / "decisions.sqlite")
    other.execute("DROP TRIGGER decisions_stay")
    other.execute("UPDATE decisions SET new = -1 WHERE id = 7")
    other.commit()
    other.close()
    with pytest.raises(
        UserError, match=r"decision 7 is not as it was written \(6 before it are as they were written\)"
    ):
        DecisionStore(files / "decisions.sqlite", read_only=True)


def test_a_commit_that_fails_leaves_no_line(tmp_path):
    with DecisionStore(tmp_path / "decisions.sqlite") as store:
        store.append([Draft("a.jpg", "dog", 0, 1)], reviewer="", queue="", run="")
        before = (tmp_path / LINES).read_bytes()

        class Full:
            def __init__(self, inner):
                self.inner = inner

            def execute(self, statement, *values):
                if statement == "COMMIT":
                    raise sqlite3.OperationalError("database or disk is full")
                return self.inner.execute(statement, *values)

            def __getattr__(self, name):
                return getattr(self.inner, name)

        store._connection = Full(store._connection)
        with pytest.raises(sqlite3.OperationalError):
            store.append([Draft("b.jpg", "dog", 0, 1)], reviewer="", queue="", run="")
        assert (tmp_path / LINES).read_bytes() == before
        store._connection = store._connection.inner


def test_a_store_of_an_earlier_version_is_sealed_when_it_is_opened(tmp_path):
    file = tmp_path / "decisions.sqlite"
    with DecisionStore(file) as store:
        store.append([Draft("a.jpg", "dog", 0, 1)], reviewer="ann", queue="missing", run="r")
    (tmp_path / LINES).unlink()
    old = sqlite3.connect(file)
    old.executescript("DROP TABLE seals; PRAGMA user_version = 1")
    old.close()
    assert len(rows(tmp_path, read_only=True)) == 1
    assert not (tmp_path / LINES).exists()
    assert len(rows(tmp_path)) == 1
    assert len((tmp_path / LINES).read_text().splitlines()) == 1
    assert len(rows(tmp_path, read_only=True)) == 1


def test_a_version_of_a_label_that_nobody_decided_is_refused(tmp_path):
    with DecisionStore(tmp_path / "decisions.sqlite") as store:
        with pytest.raises(UserError, match=r"'dog' of a.jpg has no version 7: it is new"):
            store.append([Draft("a.jpg", "dog", 0, 1, version=7)], reviewer="", queue="", run="")
        assert list(store) == []


READ = """
import os, sys
from pathlib import Path
from fewtags.review.store import DecisionStore
if os.getuid() == 0:
    os.setuid(65534)  # for whom permissions count
assert not os.access(Path(sys.argv[1]).parent, os.W_OK)
with DecisionStore(Path(sys.argv[1]), read_only=True) as store:
    print(len(list(store)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_store_on_a_read_only_disk_can_be_read(files):
    for folder in (files, *files.parents):
        if folder.stat().st_mode & stat.S_ISVTX or folder.stat().st_uid != os.getuid():  # /tmp, or not ours
            break
        folder.chmod(0o755)
    for file in files.iterdir():
        file.chmod(0o444)
    files.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ, str(files / "decisions.sqlite")], capture_output=True, text=True
        )
    finally:
        files.chmod(0o755)
    assert (done.stdout, done.returncode) == (f"{2 * NUMBER + 2}\n", 0), done.stderr

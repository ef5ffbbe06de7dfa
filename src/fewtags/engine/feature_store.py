"""Features of images on disk, each computed once: the only store, shared by all commands, runs and processes.

    index.sqlite        which image's features are in which row, and the checksum of every chunk of rows
    <shelf>/0.bin       the rows, one after the other: append-only

A shelf holds the features of one `FeatureSpec`, pooled or as maps. A row is found by the content of its image file, so
a moved, copied or touched photo finds its features, and one new photo costs one row.

Rows are on disk before the index lists them, so a process that is killed loses at most what it had not listed yet; the
next one overwrites it. Every process appends to a file of its own. What the index lists and the disk has not kept
(`DamagedChunks`) is forgotten and computed again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO, FileIO
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fewtags.atomic import file_checksum, naming
from fewtags.data.prefetch import default_workers, in_order
from fewtags.engine.feature_spec import DTYPES, FeatureSpec
from fewtags.engine.row_file import read_places
from fewtags.progress import ProgressBar

VERSION = 1
ROWS_PER_CHUNK = 256  # that share a checksum: 32 MB of maps, 0.6 MB of averages
LARGEST_FILE = 2**32  # bytes, after which a new one is begun
PATIENCE = 60.0  # seconds to wait for another process that writes to the index
OURS = re.compile(r"[0-9a-f]{24}(-pooled|\.part|\.damaged)?|\.images|\.locks|index\.sqlite(-journal)?")
NO_FILE = np.zeros(2, dtype=np.uint64)  # the content of a file that is not there

TABLES = f"""
CREATE TABLE IF NOT EXISTS shelves (key TEXT PRIMARY KEY, about TEXT, kind TEXT, shape TEXT, dtype TEXT, used REAL);
CREATE TABLE IF NOT EXISTS chunks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, shelf TEXT, file INTEGER, first INTEGER, checksum INTEGER, keys BLOB
);
CREATE INDEX IF NOT EXISTS chunks_of_shelf ON chunks (shelf);
CREATE TABLE IF NOT EXISTS contents (id INTEGER PRIMARY KEY AUTOINCREMENT, stamps BLOB, hashes BLOB);
PRAGMA user_version = {VERSION};
"""


class DamagedChunks(Exception):
    """Rows that differ from what was written."""

    def __init__(self, chunks: list[int]):
        super().__init__(f"{len(chunks)} chunks are damaged")
        self.chunks = chunks


@dataclass(frozen=True)
class ShelfSize:
    """For display."""

    key: str
    spec: FeatureSpec
    kind: str  # "pooled" or "maps"
    rows: int
    bytes: int
    used: float  # seconds since the epoch


class FeatureStore:
    def __init__(self, root: Path):
        self.root = root

    @property
    def index(self) -> Path:
        return self.root / "index.sqlite"

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """One transaction. A damaged index is replaced by an empty one: everything in the store can be made again."""
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            database = self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, or no permission: nothing is damaged
                raise self._system_error(error) from error
            self.empty()
            database = self._open()
        with closing(database):
            try:
                with database:
                    yield database
            except sqlite3.OperationalError as error:
                raise self._system_error(error) from error

    def _system_error(self, error: sqlite3.OperationalError) -> OSError:
        return OSError(errno.ENOSPC if "full" in str(error) else errno.EIO, str(error), str(self.index))

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.index, timeout=PATIENCE)
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                database.executescript(TABLES)
            elif version != VERSION:
                raise sqlite3.DatabaseError(f"version {version}")
            database.execute("SELECT count(*) FROM shelves").fetchone()
        except BaseException:
            database.close()
            raise
        return database

    def shelf(self, spec: FeatureSpec, *, pooled: bool) -> Shelf:
        return Shelf(self, spec, "pooled" if pooled else "maps")

    # --- contents of files ---

    def contents(self, files: Sequence[str], bar: ProgressBar | None = None) -> np.ndarray:
        """[N, 2] uint64: half of the SHA-256 of every file; NO_FILE where there is none.

        A file is read once, and again if its name, size, modification time or inode differs.
        """
        stamps, there = stamps_of(files)
        found = self.known_contents(stamps)
        todo = np.flatnonzero(there & ~found.any(1))
        if bar is not None:
            bar.skip(len(files) - len(todo))
        workers = default_workers()
        read = in_order(content_of, (files[row] for row in todo.tolist()), workers=workers, ahead=4 * workers)
        try:
            done = 0
            for row, content in zip(todo, read, strict=True):
                found[row] = content
                done += 1
                if bar is not None:
                    bar.step()
        finally:  # also if interrupted: reading many large files takes long
            read.close()
            some = todo[:done]
            some = some[found[some].any(1)]
            self._remember(stamps[some], found[some])
        return found

    def known_contents(self, stamps: np.ndarray) -> np.ndarray:
        """[N, 2] of files that were read before this store was opened; NO_FILE for others."""
        table, hashes = self._contents
        place = table.find(stamps)
        return np.where((place >= 0)[:, None], hashes[place] if len(hashes) else 0, NO_FILE)

    @cached_property
    def _contents(self) -> tuple[KeyTable, np.ndarray]:
        with self.connected() as database:
            rows = database.execute("SELECT stamps, hashes FROM contents ORDER BY id").fetchall()
        stamps, hashes = (as_keys(b"".join(row[part] for row in rows)) for part in range(2))
        return KeyTable(stamps), hashes

    def _remember(self, stamps: np.ndarray, hashes: np.ndarray) -> None:
        if len(stamps):
            with self.connected() as database:
                content = (stamps.tobytes(), hashes.tobytes())
                database.execute("INSERT INTO contents (stamps, hashes) VALUES (?, ?)", content)

    # --- for display and removal ---

    def shelves(self) -> list[ShelfSize]:
        if not self.index.is_file():
            return []
        with self.connected() as database:
            rows = database.execute(
                "SELECT key, about, kind, used, coalesce(sum(length(keys)), 0) / 16 FROM shelves "
                "LEFT JOIN chunks ON shelf = key GROUP BY key ORDER BY used DESC"
            ).fetchall()
        sizes = {key: folder_size(self.root / key) for key, *_ in rows}
        return [
            ShelfSize(key, FeatureSpec.from_json(about), kind, number, sizes[key], used)
            for key, about, kind, used, number in rows
        ]

    def empty(self) -> None:
        """Remove what is ours, also of earlier versions. Whoever uses it at this moment keeps what it has open, and
        computes the rest again."""
        for entry in self.root.iterdir() if self.root.is_dir() else ():
            if OURS.fullmatch(entry.name):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def drop(self, keys: Iterable[str]) -> None:
        """Remove some shelves."""
        with self.connected() as database:
            for key in keys:
                database.execute("DELETE FROM chunks WHERE shelf = ?", (key,))
                database.execute("DELETE FROM shelves WHERE key = ?", (key,))
        for key in keys:
            shutil.rmtree(self.root / key, ignore_errors=True)


class Shelf:
    """The rows of one kind of features. Reads what was there when it was opened or last `refresh`ed."""

    def __init__(self, store: FeatureStore, spec: FeatureSpec, kind: str):
        self.store, self.spec, self.kind = store, spec, kind
        self.key = spec.key if kind == "maps" else f"{spec.key}-{kind}"
        self.folder = store.root / self.key
        self.dtype = DTYPES[spec.dtype]
        self.shape: tuple[int, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        with self.store.connected() as database:
            database.execute(
                "INSERT INTO shelves (key, about, kind, shape, dtype, used) VALUES (?, ?, ?, '', ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET used = excluded.used",
                (self.key, self.spec.to_json(), self.kind, self.spec.dtype, time.time()),
            )
            (shape,) = database.execute("SELECT shape FROM shelves WHERE key = ?", (self.key,)).fetchone()
            rows = database.execute(
                "SELECT id, file, first, checksum, keys FROM chunks WHERE shelf = ? ORDER BY id", (self.key,)
            ).fetchall()
        self.shape = tuple(int(side) for side in shape.split()) if shape else ()
        self.chunks = [Chunk(row[0], row[1], row[2], row[3], len(row[4]) // 16) for row in rows]
        self._files = np.array([chunk.file for chunk in self.chunks], dtype=np.int64)
        self._firsts = np.array([chunk.first for chunk in self.chunks], dtype=np.int64)
        self.table = KeyTable(as_keys(b"".join(row[4] for row in rows)))
        counts = np.array([chunk.count for chunk in self.chunks], dtype=np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])  # of each chunk, in rows of the shelf
        self.checked = np.zeros(len(self.chunks), dtype=bool)
        self._open: dict[int, IO[bytes]] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def find(self, keys: np.ndarray) -> np.ndarray:
        """[...] the row of every key [..., 2]; -1 where there is none."""
        return self.table.find(keys.reshape(-1, 2)).reshape(keys.shape[:-1])

    def read(self, rows: np.ndarray) -> Tensor:
        """[M, *shape] in the shelf's number type. Raises DamagedChunks; every chunk is checked on its first use."""
        chunk = np.searchsorted(self.starts, rows, side="right") - 1
        self.check(numbers_in(chunk))
        places, files = self._firsts[chunk] + rows - self.starts[chunk], self._files[chunk]
        used = numbers_in(files)
        if len(used) == 1:
            return self._read(int(used[0]), places)
        out = torch.empty(len(rows), *self.shape, dtype=self.dtype)
        for file in used.tolist():
            mine = files == file
            out[torch.from_numpy(mine)] = self._read(file, places[mine])
        return out

    def check(self, chunks: np.ndarray) -> None:
        """Compare chunks with their checksums."""
        wrong = []
        for number in chunks[~self.checked[chunks]].tolist():
            chunk = self.chunks[number]
            end = chunk.first + chunk.count
            rows = self._read(chunk.file, np.arange(chunk.first, end))
            short = self._open[chunk.file].seek(0, os.SEEK_END) < end * self.row_bytes
            if short or zlib.crc32(as_bytes(rows)) != chunk.checksum:
                wrong.append(chunk.id)
            else:
                self.checked[number] = True
        if wrong:
            raise DamagedChunks(wrong)

    def _read(self, file: int, places: np.ndarray) -> Tensor:
        """[M, *shape] rows of a file; zeros for those that it has not."""
        if file not in self._open:
            path = self.folder / f"{file}.bin"
            self._open[file] = path.open("rb", buffering=0) if path.is_file() else BytesIO()
        content = read_places(self._open[file], places, self.row_bytes)
        return torch.from_numpy(content).view(self.dtype).view(len(places), *self.shape)

    def forget(self, chunks: Iterable[int]) -> None:
        """Remove damaged chunks from the index."""
        with self.store.connected() as database:
            database.executemany("DELETE FROM chunks WHERE id = ?", [(chunk,) for chunk in chunks])
        self.refresh()

    def writer(self) -> Writer:
        return Writer(self)


@dataclass(frozen=True)
class Chunk:
    id: int
    file: int
    first: int  # row of the file
    checksum: int  # CRC-32
    count: int


@dataclass
class OpenChunk:
    """A chunk that is being filled."""

    first: int
    id: int | None = None
    checksum: int = 0
    keys: bytearray = field(default_factory=bytearray)

    @property
    def count(self) -> int:
        return len(self.keys) // 16


class Writer:
    """Appends rows to a shelf; `commit` makes them findable. A file is written to by one process at a time."""

    def __init__(self, shelf: Shelf):
        self.shelf = shelf
        self.out: FileIO | None = None
        self.lock: FileLock | None = None
        self.file = 0
        self.end = 0  # rows of the file
        self.changed: list[OpenChunk] = []  # since the last commit; the last one may have room left

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self._close()

    def add(self, keys: np.ndarray, rows: Tensor) -> None:
        """Rows [M, *shape] with their keys [M, 2]."""
        if not len(keys):
            return
        if not self.shelf.shape:
            self._set_shape(tuple(rows.shape[1:]))
        rows = rows.to(self.shelf.dtype).contiguous()
        if tuple(rows.shape[1:]) != self.shelf.shape:
            raise ValueError(f"rows of {tuple(rows.shape[1:])} on a shelf of {self.shelf.shape}")
        if self.out is None or self.end * self.shelf.row_bytes > LARGEST_FILE:
            self.commit()
            self._close()
            self._open()
        self._append(keys, rows)

    def _append(self, keys: np.ndarray, rows: Tensor) -> None:
        assert self.out is not None
        content = as_bytes(rows)
        with naming(self._path):
            while content:
                content = content[self.out.write(content) :]
        while len(keys):
            if not self.changed or self.changed[-1].count >= ROWS_PER_CHUNK:
                self.changed.append(OpenChunk(self.end))
            chunk = self.changed[-1]
            here = min(ROWS_PER_CHUNK - chunk.count, len(keys))
            chunk.checksum = zlib.crc32(as_bytes(rows[:here]), chunk.checksum)
            chunk.keys += np.ascontiguousarray(keys[:here]).tobytes()
            keys, rows, self.end = keys[here:], rows[here:], self.end + here

    def commit(self) -> None:
        if self.out is None or not self.changed:
            return
        with naming(self._path):
            os.fsync(self.out.fileno())  # what the index lists must survive a power cut
        shelf = self.shelf
        with shelf.store.connected() as database:
            for chunk in self.changed:
                about = (shelf.key, self.file, chunk.first, chunk.checksum, bytes(chunk.keys))
                if chunk.id is None:
                    insert = "INSERT INTO chunks (shelf, file, first, checksum, keys) VALUES (?, ?, ?, ?, ?)"
                    chunk.id = database.execute(insert, about).lastrowid
                else:
                    change = "UPDATE chunks SET checksum = ?, keys = ? WHERE id = ?"
                    database.execute(change, (chunk.checksum, bytes(chunk.keys), chunk.id))
        self.changed = self.changed[-1:]

    @property
    def _path(self) -> Path:
        return self.shelf.folder / f"{self.file}.bin"

    def _open(self) -> None:
        """The first file with room that nobody else writes to, behind its last listed row."""
        shelf = self.shelf
        shelf.folder.mkdir(parents=True, exist_ok=True)
        self.file = -1
        while self.out is None:
            self.file += 1
            lock = FileLock(shelf.folder / f"{self.file}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            self.lock = lock
            last = self._last_chunk()
            self.end = 0 if last is None else last.first + last.count
            if self.end * shelf.row_bytes > LARGEST_FILE:
                self._close()
                continue
            with naming(self._path):
                self.out = self._path.open("r+b" if self._path.exists() else "w+b", buffering=0)
                if self._path.stat().st_size > self.end * shelf.row_bytes:
                    self.out.truncate(self.end * shelf.row_bytes)
                self.out.seek(self.end * shelf.row_bytes)
            self.changed = [last] if last is not None and last.count < ROWS_PER_CHUNK else []

    def _last_chunk(self) -> OpenChunk | None:
        with self.shelf.store.connected() as database:
            row = database.execute(
                "SELECT id, first, checksum, keys FROM chunks WHERE shelf = ? AND file = ? ORDER BY first DESC LIMIT 1",
                (self.shelf.key, self.file),
            ).fetchone()
        if row is None:
            return None
        chunk = OpenChunk(row[1], row[0], row[2], bytearray(row[3]))
        end = (chunk.first + chunk.count) * self.shelf.row_bytes
        if not self._path.is_file() or self._path.stat().st_size < end:  # damaged: a reader will find out
            chunk.keys += bytes(16 * (ROWS_PER_CHUNK - chunk.count))  # full, so that nothing is added to it
        return chunk

    def _set_shape(self, shape: tuple[int, ...]) -> None:
        self.shelf.shape = shape
        with self.shelf.store.connected() as database:
            text = " ".join(map(str, shape))
            database.execute("UPDATE shelves SET shape = ? WHERE key = ? AND shape = ''", (text, self.shelf.key))

    def _close(self) -> None:
        if self.out is not None:
            self.out.close()
            self.out = None
        if self.lock is not None:
            self.lock.release()
            self.lock = None
        self.changed = []


# --- keys ---


class KeyTable:
    """Finds keys [K, 2] uint64 among many: by binary search for the first half. Of equal ones, the last counts."""

    def __init__(self, keys: np.ndarray):
        order = np.argsort(keys[:, 0], kind="stable")
        self.order, self.first, self.second = order, keys[order, 0], keys[order, 1]

    def find(self, keys: np.ndarray) -> np.ndarray:
        """[N] the number of every key [N, 2]; -1 where there is none."""
        if not len(self.order):
            return np.full(len(keys), -1, dtype=np.int64)
        place = np.searchsorted(self.first, keys[:, 0], side="right") - 1
        found = (place >= 0) & (self.first[place] == keys[:, 0]) & (self.second[place] == keys[:, 1])
        return np.where(found, self.order[place], -1)


def as_keys(content: bytes) -> np.ndarray:
    """[K, 2] uint64"""
    return np.frombuffer(content, dtype="<u8").reshape(-1, 2)


def view_keys(contents: np.ndarray, views: int) -> np.ndarray:
    """[V, N, 2] of augmented views, which depend on the number of the view and on the image's row, too."""
    keys = np.zeros((views, len(contents), 2), dtype=np.uint64)
    for view in range(views):
        for row in np.flatnonzero(contents.any(1)).tolist():
            text = contents[row].tobytes() + f"{view} {row}".encode()
            keys[view, row] = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), dtype="<u8")
    return keys


def stamps_of(files: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """[N, 2] a hash of what tells a file from others without reading it, and [N] whether it is there.

    The folder is not part of it: a photo moved within a disk is still the same one.
    """
    stamps, there = bytearray(16 * len(files)), np.zeros(len(files), dtype=bool)
    for row, file in enumerate(files):
        try:
            status = os.stat(file)
        except (OSError, ValueError):
            continue
        about = (os.path.basename(file), status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)
        digest = hashlib.blake2b(repr(about).encode(errors="surrogatepass"), digest_size=16).digest()
        stamps[16 * row : 16 * row + 16], there[row] = digest, True
    return as_keys(bytes(stamps)), there


def content_of(file: str) -> np.ndarray:
    """[2] uint64; NO_FILE if it cannot be read."""
    try:
        return as_keys(bytes.fromhex(file_checksum(Path(file)))[:16])[0]
    except OSError:
        return NO_FILE


def numbers_in(values: np.ndarray) -> np.ndarray:
    """Each of these small numbers once, ascending; `np.unique` imports masked arrays first."""
    return np.flatnonzero(np.bincount(values))


def as_bytes(rows: Tensor) -> memoryview:
    return rows.contiguous().flatten().view(torch.uint8).numpy().data


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.bin")) if folder.is_dir() else 0

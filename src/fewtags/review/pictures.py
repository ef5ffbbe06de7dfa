"""The pictures of a review: cached thumbnails, larger views, and content hashes.

A client refers to an image by its index in the dataset, never by a path. A file that is outside the dataset's folder
after resolving symbolic links and `..` is not shown.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from PIL import Image

from fewtags.atomic import file_checksum
from fewtags.data.annotations import Annotations
from fewtags.data.images import FORMATS, LYING, ORIENTATION, BadImage, open_image, open_resized
from fewtags.errors import UserError

THUMBNAIL, LARGE = 320, 1600  # longest side, in pixels
IDLE = 0.5  # seconds without a request before the next thumbnail is made in the background


class NotShown(UserError):
    """An image that cannot be shown, with the reason."""


class Pictures:
    def __init__(self, annotations: Annotations, folder: Path):
        """Thumbnails are cached in `folder`, under names that change with the image file."""
        self.annotations, self.folder = annotations, folder
        self._root = annotations.root.resolve()
        self._hashes: dict[int, tuple[tuple[int, int], str]] = {}
        self._requests, self._last_request = 0, 0.0  # those that are being answered; when one was
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.made = 0  # progress of the background thread

    def path(self, row: int) -> Path:
        """The image's file, with symbolic links resolved. Raises NotShown."""
        if not 0 <= row < len(self.annotations):
            raise NotShown(f"There is no image {row}.")
        name = self.annotations.images[row]
        file = (self._root / name).resolve()
        if not file.is_relative_to(self._root):
            raise NotShown(f"{name} is outside the dataset's folder, perhaps through a symbolic link.")
        if not file.is_file():
            raise NotShown(f"{name} is missing; was it moved or deleted since training?")
        return file

    def thumbnail(self, row: int) -> bytes:
        """A JPEG; created if it does not exist yet."""
        return self._thumbnail(row)

    def large(self, row: int, side: int = LARGE) -> bytes:
        """A JPEG, large enough to inspect."""
        return as_jpeg(_fit(self.path(row), side))

    def opened(self, row: int) -> Image.Image:
        """At the size of `large`."""
        return _fit(self.path(row), LARGE)

    def content_hash(self, row: int) -> str:
        """SHA-256 of the file, "" if there is none."""
        try:
            file = self.path(row)
            state = _state(file)
            if row not in self._hashes or self._hashes[row][0] != state:
                self._hashes[row] = (state, file_checksum(file))
        except (NotShown, OSError):
            return ""
        return self._hashes[row][1]

    def _thumbnail(self, row: int) -> bytes:
        path = self.path(row)
        key = hashlib.sha256(f"{path}|{_state(path)}|{THUMBNAIL}".encode()).hexdigest()[:32]
        file = self.folder / key[:2] / f"{key}.jpg"
        if file.is_file():
            return file.read_bytes()
        content = as_jpeg(_fit(path, THUMBNAIL))
        with suppress(OSError):  # if it cannot be saved, it is made again next time
            file.parent.mkdir(parents=True, exist_ok=True)
            # Two requests may make the same one: each writes its own file, and the last one wins.
            temporary = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
            temporary.write_bytes(content)
            temporary.replace(file)
        return content

    # --- in the background ---

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While a request is answered, and shortly after it, nothing is made in the background."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests, self._last_request = self._requests - 1, time.monotonic()

    def _idle(self) -> bool:
        return not self._requests and time.monotonic() - self._last_request >= IDLE

    def start(self) -> None:
        """Make all thumbnails, one by one, while the server is idle."""
        self._last_request = time.monotonic()  # the page is about to ask
        self._thread = threading.Thread(target=self._make_all, name="thumbnails", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _make_all(self) -> None:
        for row in range(len(self.annotations)):
            while not self._idle() and not self._stop.is_set():
                time.sleep(IDLE / 10)
            if self._stop.is_set():
                return
            try:
                self._thumbnail(row)
                self.content_hash(row)
            except (NotShown, BadImage, OSError):
                pass  # its tile shows the reason
            self.made = row + 1


def _fit(path: Path, side: int) -> Image.Image:
    """The picture, upright, its longest side at most `side`. Raises BadImage."""
    try:
        with Image.open(path, formats=FORMATS) as stored:
            width, height = stored.size
            if stored.getexif().get(ORIENTATION) in LYING:
                width, height = height, width
    except Exception:  # `open_image` says what is wrong with it
        return open_image(path)
    scale = side / max(width, height)
    if scale >= 1:
        return open_image(path)
    return open_resized(path, (max(round(width * scale), 1), max(round(height * scale), 1)))


def as_jpeg(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.convert("RGB").save(out, "JPEG", quality=85)
    return out.getvalue()


def _state(file: Path) -> tuple[int, int]:
    about = os.stat(file)
    return about.st_mtime_ns, about.st_size

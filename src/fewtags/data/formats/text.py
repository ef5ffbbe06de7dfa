"""Text and JSON files from any source: decoded, or rejected with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fewtags.errors import DataError, UserError

HEAD = 65_536  # bytes read to detect the layout


def read_bytes(file: Path, most: int | None = None) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read() if most is None else stream.read(most) + stream.readline()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


def read_text(file: Path, most: int | None = None) -> tuple[str, str]:
    """The content of a text file in any encoding, and a note about the encoding if it is not UTF-8.

    With `most`, whole lines from the beginning, about that many bytes.
    """
    data = read_bytes(file, most)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace"), "decoded as UTF-16"
    if b"\0" in data[:4096]:
        raise UserError(f"{file} should be a text file; it contains binary data.")
    try:
        return data.decode("utf-8-sig"), ""
    except UnicodeDecodeError:
        return data.decode("latin-1"), "decoded as Latin-1, as it is not UTF-8"


def decoded(file: Path) -> tuple[str, str, bytes]:
    """Text, encoding and byte order mark of a file, so that it can be written back the same way."""
    data = read_bytes(file)
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, errors="replace"), encoding, mark
    try:
        return data.decode("utf-8"), "utf-8", b""
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1", b""


def line_end_of(text: str) -> str:
    """The one that most of its lines have; a plain line feed if it has one line."""
    crlf = text.count("\r\n")
    counts = {"\n": text.count("\n") - crlf, "\r\n": crlf, "\r": text.count("\r") - crlf}
    return max(counts, key=lambda end: counts[end])


def read_head(file: Path, num_bytes: int = HEAD) -> str:
    """The first bytes as text, '' if unreadable: detection never fails."""
    try:
        with file.open("rb") as stream:
            return stream.read(num_bytes).decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    except OSError:
        return ""


def load_json(file: Path, what: str) -> Any:
    """`what` says what the file should be, for the error message."""
    try:
        return json.loads(read_bytes(file))
    except (ValueError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{file} should be {what}, but it cannot be read as JSON: {reason}.") from None


def whole_number(value: Any) -> int:
    """An id as written in files (7, "7", 7.0). Raises ValueError for anything else, such as 1e999 and null."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a whole number")
    try:
        number = int(value)
    except OverflowError:
        raise ValueError(f"{value!r} is not a whole number") from None
    if isinstance(value, float) and number != value:
        raise ValueError(f"{value!r} is not a whole number")
    return number


def files_with_suffix(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The file itself, or the files directly in a folder, that have one of the suffixes."""
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [f for f in files if f.suffix.lower() in suffixes and not f.name.startswith(".") and f.is_file()]


def only_file(path: Path, files: list[Path]) -> Path:
    if len(files) == 1:
        return files[0]
    found = f"{len(files)} label files ({', '.join(file.name for file in files)})" if files else "no label file"
    raise UserError(f"{path} contains {found}; pass the one to read as the tags.")

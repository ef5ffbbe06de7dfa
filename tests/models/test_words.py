from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags.errors import DataError, UserError
from fewtags.models import words
from fewtags.models.words import find_word_vectors, resolve, split_words

VOCABULARY = [
    *("table", "hot", "dog", "tv", "light", "plant", "dining", "traffic", "monitor", "potted", "pony"),
    *("diningt", "able"),  # rarer, so a worse way to cut "diningtable"
]
LEXICON = {word: np.eye(len(VOCABULARY), dtype=np.float32)[n] for n, word in enumerate(VOCABULARY)}


def mean(*names: str) -> np.ndarray:
    return np.mean([LEXICON[name] for name in names], axis=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dog", ("dog",)),
        ("Dog", ("dog",)),
        ("dogs", ("dog",)),
        ("ponies", ("pony",)),
        ("hot_dog", ("hot", "dog")),
        ("hotDog", ("hot", "dog")),
        ("potted plant", ("potted", "plant")),
        ("traffic-lights", ("traffic", "light")),
        ("diningtable", ("dining", "table")),
        ("tvmonitor", ("tv", "monitor")),
        ("xylo dog", ("dog",)),
    ],
)
def test_names_resolve_as_people_write_them(name: str, expected: tuple[str, ...]) -> None:
    np.testing.assert_allclose(resolve(name, LEXICON), mean(*expected))


def test_a_name_without_known_words_is_not_resolved() -> None:
    assert resolve("xylo", LEXICON) is None


def test_words_of_a_name() -> None:
    assert split_words("Traffic_light (red)") == ["traffic", "light", "red"]


@pytest.fixture
def lexicon_file(tmp_path: Path) -> Path:
    path = tmp_path / "words.npz"
    np.savez(path, names=np.array(VOCABULARY), vectors=np.stack(list(LEXICON.values())))
    return path


def test_a_file_gives_its_vectors_and_says_what_is_missing(lexicon_file: Path) -> None:
    found = find_word_vectors(["hot dog", "xylo"], str(lexicon_file))
    np.testing.assert_allclose(found.vectors[0], mean("hot", "dog"))
    assert found.source == f"words.npz, {len(VOCABULARY)}-d, 1 of 2 names (random for xylo)"
    assert not found.learned
    swapped = find_word_vectors(["xylo", "hot dog"], str(lexicon_file))
    torch.testing.assert_close(swapped.vectors.flip(0), found.vectors)


def test_phrases_of_a_file_are_found_written_as_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", names=np.array(["dining table"]), vectors=np.ones((1, 4)))
    assert find_word_vectors(["diningtable"], str(tmp_path / "w.npz")).source.endswith("1 of 1 names")


def test_glove_text(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 0 0\ndog 1 2\nhot 3 4\n", encoding="utf-8")
    found = find_word_vectors(["hot_dog", "dogs"], str(path))
    torch.testing.assert_close(found.vectors, torch.tensor([[2.0, 3.0], [1.0, 2.0]]))


def test_rows_in_the_order_of_the_categories(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(6.0).reshape(2, 3))
    assert find_word_vectors(["a", "b"], str(tmp_path / "rows.npy")).vectors.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(DataError, match="one row for each of 3 categories"):
        find_word_vectors(["a", "b", "c"], str(tmp_path / "rows.npy"))


def test_random_vectors_are_learned_and_repeatable() -> None:
    first, second = (find_word_vectors(["a", "b"], "random", dim=8, seed=3) for _ in range(2))
    assert first.learned
    assert first.vectors.shape == (2, 8)
    assert torch.equal(first.vectors, second.vectors)


def test_auto_says_that_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_package_installed", lambda: False)
    found = find_word_vectors(["a"])
    assert found.learned
    assert "no word-vector package is installed" in found.source


def test_auto_uses_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_package_installed", lambda: True)
    monkeypatch.setattr(words, "_read_package", lambda wanted: {w: v for w, v in LEXICON.items() if w in wanted})
    found = find_word_vectors(["diningtable", "TV monitor"])
    assert "2 of 2 names" in found.source
    np.testing.assert_allclose(found.vectors[0], mean("dining", "table"))


def test_mistakes_are_named(tmp_path: Path, lexicon_file: Path) -> None:
    with pytest.raises(UserError, match="no word-vector file"):
        find_word_vectors(["a"], str(tmp_path / "absent.npz"))
    with pytest.raises(DataError, match="none of the category names"):
        find_word_vectors(["xylo"], str(lexicon_file))
    np.savez(tmp_path / "other.npz", rows=np.ones(3))
    with pytest.raises(DataError, match="'names' and 'vectors'"):
        find_word_vectors(["a"], str(tmp_path / "other.npz"))

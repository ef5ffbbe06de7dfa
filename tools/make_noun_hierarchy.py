"""Makes src/fewtags/models/nouns.npz, the nouns of WordNet 3.0 and which is a kind of which.

ImageNet's classes are WordNet synsets, so this file says which classes of a backbone's classifier are dogs. WordNet's
files are those of Debian's package `wordnet-base`; other releases number the synsets differently and do not fit:

    apt-get install wordnet-base
    .venv/bin/python tools/make_noun_hierarchy.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from fewtags.models.nouns import FILE, squash

LICENCE = FILE.with_name("WORDNET-LICENSE.txt")
HYPERNYMS, MEMBERS = ("@", "@i"), ("%m",)  # pointers of data.noun: a kind of, an instance of; has as a member


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder with data.noun")
    folder = parser.parse_args().wordnet
    np.savez_compressed(FILE, **read_wordnet(folder))
    LICENCE.write_text(licence(folder), encoding="utf-8")
    print(f"{FILE.name}: {FILE.stat().st_size / 1e6:.1f} MB")


def read_wordnet(folder: Path) -> dict[str, np.ndarray]:
    """The arrays that `fewtags.models.nouns.Nouns` reads."""
    synsets = read_synsets(folder)
    senses = read_senses(folder)
    number = {offset: n for n, offset in enumerate(synsets)}
    lemmas = sorted(senses, key=lambda lemma: (squash(lemma), lemma))
    place = {lemma: n for n, lemma in enumerate(lemmas)}
    rows = {
        "senses": [[number[offset] for offset in senses[lemma]] for lemma in lemmas],
        "words": [[place[word] for word in words] for words, _, _ in synsets.values()],
        "hypernyms": [[number[offset] for offset in hypernyms] for _, hypernyms, _ in synsets.values()],
        "members": [[number[offset] for offset in members] for _, _, members in synsets.values()],
    }
    arrays = {"offsets": np.array(list(synsets), np.int32), "lemmas": as_bytes("\n".join(lemmas))}
    for name, ragged in rows.items():
        arrays[name] = np.array([value for row in ragged for value in row], np.int32)
        arrays[f"num_{name}"] = np.array([len(row) for row in ragged], np.uint16)
    plurals = (folder / "noun.exc").read_text(encoding="utf-8").splitlines()
    arrays["plurals"] = as_bytes("\n".join(" ".join(line.split()[:2]) for line in plurals))
    return arrays


def as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def read_synsets(folder: Path) -> dict[int, tuple[list[str], list[int], list[int]]]:
    """Offset -> words, hypernyms, members. A line: offset file type number-of-words {word id}... number {pointer}..."""
    synsets = {}
    for line in lines_of(folder / "data.noun"):
        fields = line.split(" | ")[0].split()
        num_words = int(fields[3], 16)
        words = [word.lower() for word in fields[4 : 4 + 2 * num_words : 2]]
        rest = fields[4 + 2 * num_words :]
        pointers = [(rest[n], int(rest[n + 1])) for n in range(1, 1 + 4 * int(rest[0]), 4)]
        hypernyms = [offset for kind, offset in pointers if kind in HYPERNYMS]
        members = [offset for kind, offset in pointers if kind in MEMBERS]
        synsets[int(fields[0])] = (list(dict.fromkeys(words)), hypernyms, members)
    return synsets


def read_senses(folder: Path) -> dict[str, list[int]]:
    """Lemma -> offsets, the most frequent sense first. A line ends with as many offsets as its third field says."""
    senses = {}
    for line in lines_of(folder / "index.noun"):
        fields = line.split()
        senses[fields[0]] = [int(offset) for offset in fields[-int(fields[2]) :]]
    return senses


def lines_of(file: Path) -> list[str]:
    """Without the licence, whose lines begin with two spaces."""
    return [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("  ")]


def licence(folder: Path) -> str:
    """The notice that WordNet asks to have beside every copy, as it stands at the top of its own files."""
    lines = (folder / "data.noun").read_text(encoding="utf-8").splitlines()
    notice = [line.split(maxsplit=1) for line in lines if line.startswith("  ")]
    head = "nouns.npz is made from the noun files of WordNet 3.0 (lemmas, senses, hypernyms, members); its licence:\n"
    return "\n".join([head, *(words[1].rstrip() if len(words) > 1 else "" for words in notice)]) + "\n"


if __name__ == "__main__":
    main()

"""The example archive: keywords in the files, and every step of the first hour works on it without a network."""

from conftest import Cli
from fewtags.data.formats import read_annotations


def test_an_archive_with_keywords_is_made_checked_and_trained_on(cli: Cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = cli("example", "-q")
    assert made.code == 0, made.err
    commands = [line.split("(")[0].split() for line in made.out.splitlines() if line.startswith("  fewtags")]
    assert [command[1] for command in commands] == ["check", "train", "review"]
    for command in commands[:2]:  # as it is printed
        answer = cli(*command[1:])
        assert answer.code == 0, answer.err
    found = cli("discover", "example/first")
    assert "surest first" in found.out
    again = cli("example", "-q")
    assert again.code == 2
    assert "example is not empty" in again.err


def test_keywords_are_some_of_what_is_in_the_pictures(cli: Cli, tmp_path):
    cli("example", tmp_path / "archive", "-q")
    read = read_annotations(tmp_path / "archive" / "photos")
    assert len(read) == 300
    assert "keywords in and next to the photos" in read.notes[0]
    assert 0.5 < (read.labels == 1).sum() / len(read) < 1.5
    assert (read.labels != -1).all()

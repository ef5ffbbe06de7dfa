"""Keywords in and beside photos: what programs write is read, and what is broken is said."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.errors import DataError

exiftool = pytest.mark.skipif(shutil.which("exiftool") is None, reason="exiftool is not installed")


def photo(file: Path, **options: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 12), (200, 40, 40)).save(file, **options)
    return file


def packet(subjects: list[str] = (), paths: list[str] = (), digikam: list[str] = (), more: str = "") -> bytes:  # type: ignore[assignment]
    def bag(name: str, items: list[str], kind: str = "Bag") -> str:
        listed = "".join(f"<rdf:li>{item}</rdf:li>" for item in items)
        return f"<{name}><rdf:{kind}>{listed}</rdf:{kind}></{name}>" if items else ""

    text = (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""'
        ' xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:lr="http://ns.adobe.com/lightroom/1.0/"'
        ' xmlns:digiKam="http://www.digikam.org/ns/1.0/" xmlns:fewtags="urn:fewtags:xmp:1#">'
        f"{bag('dc:subject', subjects)}{bag('lr:hierarchicalSubject', paths)}{bag('digiKam:TagsList', digikam, 'Seq')}"
        f'{more}</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
    )
    return text.encode()


def tags_of(annotations: Annotations) -> dict[str, set[str]]:
    return {
        image: {annotations.categories[c] for c in np.flatnonzero(row == 1)}
        for image, row in zip(annotations.images, annotations.labels, strict=True)
    }


@exiftool
def test_what_exiftool_embeds_is_read_in_every_format(tmp_path: Path) -> None:
    for suffix in ("jpg", "png", "tif", "webp"):
        photo(tmp_path / f"a.{suffix}")
    files = [str(file) for file in sorted(tmp_path.iterdir())]
    arguments = ["-XMP-dc:Subject=dog", "-XMP-dc:Subject=Zürich, alt", "-XMP-lr:HierarchicalSubject=animal|pet|dog"]
    subprocess.run(["exiftool", "-q", "-overwrite_original", *arguments, *files], check=True)
    annotations = read_annotations(tmp_path)
    expected = {"dog", "Zürich, alt", "animal", "pet"}
    assert tags_of(annotations) == {Path(file).name: expected for file in files}
    assert "keywords in and next to the photos, 0 without" in annotations.notes[0]
    leaves = read_annotations(tmp_path, hierarchy="leaf")
    assert leaves.categories == ["Zürich, alt", "dog"]


@exiftool
def test_iptc_and_windows_keywords_that_exiftool_embeds(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.tif", "a.png"):
        photo(tmp_path / name)
    files = [str(file) for file in sorted(tmp_path.iterdir())]
    utf8 = ["-codedcharacterset=utf8", "-IPTC:Keywords=Zürich", "-IPTC:Keywords=dog"]
    subprocess.run(["exiftool", "-q", "-overwrite_original", *utf8, *files], check=True, stderr=subprocess.DEVNULL)
    photo(tmp_path / "latin.jpg")
    latin = ["-charset", "iptc=Latin", "-IPTC:Keywords=Zürich", str(tmp_path / "latin.jpg")]
    subprocess.run(["exiftool", "-q", "-overwrite_original", *latin], check=True)
    photo(tmp_path / "windows.jpg")
    subprocess.run(
        ["exiftool", "-q", "-overwrite_original", "-XPKeywords=dog;Zürich", str(tmp_path / "windows.jpg")], check=True
    )
    assert tags_of(read_annotations(tmp_path)) == {
        "a.jpg": {"Zürich", "dog"},
        "a.png": {"Zürich", "dog"},
        "a.tif": {"Zürich", "dog"},
        "latin.jpg": {"Zürich"},
        "windows.jpg": {"Zürich", "dog"},
    }


def test_sidecars_in_both_naming_habits_add_up(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", xmp=packet(["sea"]))
    (tmp_path / "a.jpg.xmp").write_bytes(packet(["boat"]))
    (tmp_path / "a.xmp").write_bytes(packet([], ["place|harbour"], ["animal/dog"]))
    photo(tmp_path / "2019" / "b.jpg")
    annotations = read_annotations(tmp_path)
    assert tags_of(annotations) == {
        "a.jpg": {"sea", "boat", "place", "harbour", "animal", "dog"},
        "2019/b.jpg": set(),
    }
    assert tags_of(read_annotations(tmp_path, where="embedded"))["a.jpg"] == {"sea"}
    assert tags_of(read_annotations(tmp_path, where="sidecar", hierarchy="leaf"))["a.jpg"] == {"boat", "harbour", "dog"}


def test_a_png_whose_text_is_behind_its_pixels(tmp_path: Path) -> None:
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", packet(["sea"]).decode(), zip=True)
    photo(tmp_path / "a.png", pnginfo=text)
    data = (tmp_path / "a.png").read_bytes()
    start = data.index(b"iTXt") - 4
    size = int.from_bytes(data[start : start + 4], "big") + 12
    moved = data[:start] + data[start + size :]
    end = moved.index(b"IEND") - 4
    (tmp_path / "a.png").write_bytes(moved[:end] + data[start : start + size] + moved[end:])
    assert tags_of(read_annotations(tmp_path)) == {"a.png": {"sea"}}


def test_what_programs_note_for_themselves_is_no_tag(tmp_path: Path) -> None:
    keywords = packet(
        ["sea", "darktable|format|jpg"], ["darktable|exported"], ["_Digikam_Internal_Tags_/Color Label Red"]
    )
    photo(tmp_path / "a.jpg", xmp=keywords)
    assert read_annotations(tmp_path).categories == ["sea"]


def test_keywords_that_fewtags_wrote_are_not_read_as_a_person_s(tmp_path: Path) -> None:
    own = "<fewtags:Predicted><rdf:Seq><rdf:li>boat</rdf:li></rdf:Seq></fewtags:Predicted>"
    photo(tmp_path / "a.jpg", xmp=packet(["sea", "boat"], more=own))
    annotations = read_annotations(tmp_path)
    assert annotations.categories == ["sea"]
    assert "1 keyword written by fewtags itself skipped" in annotations.notes[-1]
    assert read_annotations(tmp_path, predicted=True).categories == ["boat", "sea"]


def test_a_label_file_goes_before_keywords_and_keywords_before_folder_names(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/2.jpg"):
        photo(tmp_path / name, xmp=packet(["holiday"]))
    assert read_annotations(tmp_path).categories == ["holiday"]
    assert read_annotations(tmp_path, format="folders").categories == ["cat", "dog"]
    (tmp_path / "tags.csv").write_text("image,tags\ncat/1.jpg,x\n")
    assert read_annotations(tmp_path).categories == ["x"]


def test_a_stray_keyword_does_not_outweigh_tag_folders_but_a_tree_by_years_does(tmp_path: Path) -> None:
    for number in range(10):
        photo(tmp_path / "tags" / ("cat" if number % 2 else "dog") / f"{number}.jpg")
        photo(tmp_path / "years" / ("2019" if number % 2 else "2020") / f"{number}.jpg")
    photo(tmp_path / "tags" / "cat" / "a.jpg", xmp=packet(["holiday"]))
    photo(tmp_path / "years" / "2019" / "a.jpg", xmp=packet(["holiday"]))
    assert read_annotations(tmp_path / "tags").categories == ["cat", "dog"]
    assert read_annotations(tmp_path / "years").categories == ["holiday"]


def test_detection_opens_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fewtags.data.formats import keywords

    for number in range(30):
        photo(tmp_path / f"{number}.jpg")
    opened = []
    monkeypatch.setattr(keywords, "NUM_SAMPLED", 5)
    monkeypatch.setattr(keywords, "read_photo", lambda path, source: opened.append(path) or keywords.Found())
    assert not keywords.detects_keywords(tmp_path)
    assert len(opened) == 5


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/">&b;</x:xmpmeta>'
)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (BOMB, "declares a DTD or entities"),
        (b"<html><body>hello</body></html>", "not XMP: it has no rdf:RDF"),
        (b'{"tags": ["dog"]}', "cannot be read: not well-formed"),
        (packet(["dog"])[:200], "cannot be read"),
        (b'<?xml version="1.0" encoding="gb2312"?><a/>', "cannot be read"),
        (b'<?xml version="1.0" encoding="x"?><a/>', "cannot be read"),
        (packet(["dog"]).decode().encode("utf-16-le"), "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_broken_sidecar_is_one_sentence_and_nothing_else_is_lost(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    photo(tmp_path / "a.jpg", xmp=packet(["sea"]))
    (tmp_path / "a.jpg.xmp").write_bytes(content)
    annotations = read_annotations(tmp_path)
    assert tags_of(annotations) == {"a.jpg": {"sea"}}
    (finding,) = annotations.findings
    assert (finding.kind, finding.where) == ("unreadable keywords", str(tmp_path / "a.jpg.xmp"))
    assert sentence in finding.message
    assert "\n" not in finding.message


def test_utf_16_sidecars_with_their_mark_are_read(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    (tmp_path / "a.xmp").write_bytes(packet(["Zürich"]).decode().encode("utf-16"))
    assert read_annotations(tmp_path).categories == ["Zürich"]


def test_an_attribute_and_a_single_text_are_keywords_too(tmp_path: Path) -> None:
    text = packet().decode().replace('rdf:about=""', 'rdf:about="" dc:subject="sea"')
    photo(tmp_path / "a.jpg", xmp=text.encode())
    photo(tmp_path / "b.jpg", xmp=packet(more="<dc:subject>boat</dc:subject>"))
    assert tags_of(read_annotations(tmp_path)) == {"a.jpg": {"sea"}, "b.jpg": {"boat"}}


def test_no_keyword_at_all(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"None of the 1 photos in .* has a keyword"):
        read_annotations(tmp_path, format="keywords")


def test_heic_photos_are_read_with_the_extra(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    photo(tmp_path / "a.heic", xmp=packet(["sea"]))
    assert tags_of(read_annotations(tmp_path)) == {"a.heic": {"sea"}}

"""CSV with a tag column and one-hot CSV: what is read, what is reported, what is skipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.errors import DataError, UserError


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (folder / name).touch()
    return folder


def read(photos: Path, text: str | bytes, **options: object) -> Annotations:
    file = photos.parent / "tags.csv"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_annotations(photos, tags=file, **{"keep_untagged": False} | options)


def tags_of(annotations: Annotations, state: int = 1) -> dict[str, set[str]]:
    return {
        image: {annotations.categories[c] for c in np.flatnonzero(row == state)}
        for image, row in zip(annotations.images, annotations.labels, strict=True)
    }


def kinds(annotations: Annotations) -> list[str]:
    return [finding.kind for finding in annotations.findings]


CATS_AND_DOGS = {"a.jpg": {"cat", "dog"}, "b.jpg": {"dog"}}


@pytest.mark.parametrize(
    "text",
    [
        'image,tags\na.jpg,"cat,dog"\nb.jpg,dog\n',
        "image,tags\na.jpg,cat;dog\nb.jpg,dog\n",
        "image;tags\na.jpg;cat,dog\nb.jpg;dog\n",
        "file\tkeywords\na.jpg\tcat|dog\nb.jpg\tdog\n",
        "file|labels\na.jpg|cat,dog\nb.jpg|dog\n",
        "image,tag\na.jpg,cat\na.jpg,dog\nb.jpg,dog\n",
        "a.jpg,cat,dog\nb.jpg,dog\n",
        "image,tags\na.jpg,cat,dog\nb.jpg,dog\n",
        "cat,a.jpg\ndog,a.jpg\ndog,b.jpg\n",
        "foto;stichwort\r\na.jpg;cat,dog\r\nb.jpg;dog\r\n",
        "\ufeffimage,tags\na.jpg,cat;dog\nb.jpg,dog\n",
        "id,size,image_path,labels\n1,20,photos/a.jpg,cat;dog\n2,30,photos/b.jpg,dog\n",
        "image,tags\n./a.jpg,\"['cat', 'dog']\"\n.\\b.jpg,['dog']\n",
        "image_id,tags\na,cat;dog\nb,dog\n",
        "image;tags\na.jpg;cat,dog\nb.jpg;dog,dog\n",
        "a.jpg;cat,dog\nb.jpg;dog,dog\n",
    ],
)
def test_many_dialects_say_the_same(photos: Path, text: str) -> None:
    annotations = read(photos, text)
    assert {Path(image).name: tags for image, tags in tags_of(annotations).items()} == CATS_AND_DOGS
    assert annotations.categories == ["cat", "dog"]
    assert all(annotations.path(row).is_file() for row in range(len(annotations)))
    assert not annotations.findings
    assert annotations.splits.tolist() == ["train", "train"]


def test_what_was_understood_is_said_in_words(photos: Path) -> None:
    annotations = read(photos, "file;keywords\na.jpg;cat,dog\nb.jpg;dog\n")
    assert annotations.notes[0] == (
        f"Read {photos.parent / 'tags.csv'}: ';' between columns, images in 'file', "
        "tags in 'keywords' separated by ','; 2 images, 2 tags; unlisted tags are unknown."
    )


def test_a_blank_is_part_of_a_tag_unless_words_recur(photos: Path) -> None:
    assert read(photos, "image,tags\na.jpg,polar bear\nb.jpg,brown bear\n").categories == ["brown bear", "polar bear"]
    separated = read(photos, "image,tags\na.jpg,haze road\nb.jpg,haze\nc.jpg,road haze\n")
    assert separated.categories == ["haze", "road"]
    assert "separated by spaces" in separated.notes[0]


def test_absent_tags_by_prefix_by_column_and_by_open_images_confidence(photos: Path) -> None:
    prefixed = read(photos, "image,tags\na.jpg,cat;-dog\nb.jpg,dog\n")
    in_column = read(photos, "image,tags,absent\na.jpg,cat,dog\nb.jpg,dog,\n")
    verified = read(photos, "ImageID,Source,LabelName,Confidence\na,x,cat,1\na,x,dog,0\nb,x,dog,1\n")
    for understood in (prefixed, in_column, verified):
        assert understood.labels.tolist() == [[1, -1], [0, 1]]


def test_complete_lists_make_the_rest_absent(photos: Path) -> None:
    annotations = read(photos, "image,tags\na.jpg,cat;dog\nb.jpg,dog\nc.jpg,\n", complete=True)
    assert annotations.labels.tolist() == [[1, 1], [-1, 1], [-1, -1]]
    assert "unlisted tags are absent" in annotations.notes[0]


def test_split_column(photos: Path) -> None:
    annotations = read(photos, "image,tags,split\na.jpg,cat,Train\nb.jpg,dog,validation\nc.jpg,dog,extra\n")
    assert annotations.splits.tolist() == ["train", "val"]
    assert kinds(annotations) == ["unknown split"]


def test_an_image_stays_in_its_first_split(photos: Path) -> None:
    rows = ["a.jpg,cat,Training", "a.jpg,dog,train", "a.jpg,cow,", "b.jpg,cat,", "b.jpg,dog,test", "b.jpg,cow,val"]
    annotations = read(photos, "\n".join(["image,tag,split", *rows]))
    assert annotations.splits.tolist() == ["train", "test"]
    assert [(f.kind, f.where.rsplit(":")[-1]) for f in annotations.findings] == [("conflicting split", "7")]


def test_every_problem_is_listed_with_its_line_and_reading_goes_on(photos: Path) -> None:
    rows = ["a.jpg,cat;dog,,", ",dog,,", "gone.jpg,cat,,", "a.jpg,cat,,", "b.jpg,cat;bird,cat,", "c.jpg,dog,,x,y"]
    text = "\n".join(["image,tags,absent,note", *rows])
    annotations = read(photos, text, categories=["dog", "cat"])
    file = photos.parent / "tags.csv"
    found = {(finding.kind, finding.where) for finding in annotations.findings}
    assert found == {
        ("no image", f"{file}:3"),
        ("missing image", f"{file}:4"),
        ("duplicate row", f"{file}:5"),
        ("unknown category", f"{file}:6"),
        ("conflicting label", f"{file}:6"),
        ("malformed row", f"{file}:7"),
    }
    assert annotations.categories == ["dog", "cat"]
    assert tags_of(annotations) == {"a.jpg": {"cat", "dog"}, "b.jpg": {"cat"}, "c.jpg": {"dog"}}


def test_line_numbers_count_lines_not_rows(photos: Path) -> None:
    annotations = read(photos, 'image,tags\n\na.jpg,"cat,\ndog"\n\ngone.jpg,cat\n')
    assert annotations.findings[0].where.endswith(":6")


def test_names_that_differ_in_case_are_one_tag_unless_asked(photos: Path) -> None:
    annotations = read(photos, "image,tags\na.jpg,Dog\nb.jpg,dog\nc.jpg,dog \n")
    assert annotations.categories == ["dog"]
    assert annotations.labels.tolist() == [[1], [1], [1]]
    apart = read(photos, "image,tags\na.jpg,Dog\nb.jpg,dog\n", merge_case=False)
    assert (apart.categories, kinds(apart)) == (["Dog", "dog"], ["similar categories"])


def test_latin_1_is_read_and_said(photos: Path) -> None:
    annotations = read(photos, "image,tags\na.jpg,caf\xe9\n".encode("latin-1"))
    assert annotations.categories == ["café"]
    assert "Latin-1" in annotations.notes[0]
    assert read(photos, "image,tags\na.jpg,café\n".encode("utf-16")).categories == ["café"]


def test_images_are_found_beside_the_file_and_in_a_folder_beside_it(photos: Path) -> None:
    (photos.parent / "tags.csv").write_text("image,tags\na.jpg,cat\nb.jpg,dog\n")
    assert read_annotations(photos.parent / "tags.csv").root == photos
    (photos / "tags.csv").write_text("image,tags\na.jpg,cat\nb.jpg,dog\n")
    assert read_annotations(photos).root == photos


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is empty"),
        (b"image,tags\n", "but no rows"),
        (b"image,tags\nx.jpg,cat\ny.jpg,dog\n", "None of the 2 images"),
        (b"\x89PNG\0\0\0", "binary data"),
        (b"image,tags\na.jpg,\nb.jpg,\n", "has no tag"),
        (b"image,colour,size\na.jpg,red,big\n", "Which column"),
        (b"words,more\nx,y\n", "No column"),
        (b"a.jpg\nb.jpg\n", "only an image column"),
        (b"image\na.jpg\n", "only the columns image"),
        (b'image,tags\na.jpg,"cat\nb.jpg,dog\n', "unclosed quotation mark"),
        (b'image,tags\na.jpg,"' + b"x" * 200_000, "cannot be read as CSV"),
    ],
)
def test_an_unusable_table_is_one_sentence(photos: Path, text: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read(photos, text)


def test_named_columns_that_do_not_exist(photos: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'tags'"):
        read(photos, "image,tags\na.jpg,cat\n", tag_column="tag")
    assert read(photos, "image,x,y\na.jpg,cat,1\n", tag_column="x").categories == ["cat"]


# --- one-hot ---


@pytest.mark.parametrize(
    ("cells", "options", "expected"),
    [
        (["1", "0", "1"], {}, [1, 0, 1]),  # a 0 may only mean that nobody ticked the box
        (["1", "0", ""], {}, [1, -1, 0]),  # a blank is the unknown, so the 0 was put there
        (["1", "-1", ""], {}, [1, -1, 0]),
        (["1", "0", "-1"], {}, [1, 0, -1]),
        (["true", "False", "1.0"], {"zero": "absent"}, [1, -1, 1]),
        (["1", "0", ""], {"zero": "unknown"}, [1, 0, 0]),
        (["1", "0", ""], {"complete": True}, [1, -1, -1]),
    ],
)
def test_meaning_of_the_values(photos: Path, cells: list[str], options: dict, expected: list[int]) -> None:
    annotations = read(photos, f"image,x,y,z\na.jpg,{','.join(cells)}\n", **options)
    assert annotations.labels.tolist() == [expected]
    assert ("ambiguous value" in kinds(annotations)) == ("0" in cells and not options)


CHEXPERT = "Path,Sex,Age,Edema,Fracture\na.jpg,Female,68,1,\nb.jpg,Male,40,-1,0\n"


def test_chexpert_is_never_guessed(photos: Path) -> None:
    """1 / 0 / -1 / blank in one table: -1 means uncertain there and absent elsewhere, so nothing is claimed."""
    unsaid = read(photos, CHEXPERT)
    assert unsaid.categories == ["Edema", "Fracture"]
    assert unsaid.labels.tolist() == [[1, 0], [0, 0]]
    (finding,) = unsaid.findings
    assert "zero=absent" in finding.message
    assert "minus_one=unknown" in finding.message
    assert "-1 is unknown" in unsaid.notes[0]
    assert "Not read as tags: the columns Sex, Age." in unsaid.notes


def test_chexpert_as_told(photos: Path) -> None:
    said = read(photos, CHEXPERT, zero="absent", minus_one="unknown")
    assert said.labels.tolist() == [[1, 0], [0, -1]]
    assert not said.findings
    assert read(photos, CHEXPERT, minus_one="unknown").labels.tolist() == [[1, 0], [0, -1]]
    assert read(photos, CHEXPERT, zero="absent").labels.tolist() == [[1, 0], [0, -1]]
    assert read(photos, CHEXPERT, zero="unknown").labels.tolist() == [[1, 0], [-1, 0]]


def test_onehot_problems(photos: Path) -> None:
    rows = [
        "a.jpg,1,,-1,train",
        "b.jpg,maybe,1,1,test",
        "gone.jpg,1,1,1,train",
        "a.jpg,-1,-1,,train",
        "c.jpg,1,1,1,odd",
    ]
    annotations = read(photos, "\n".join(["image,x,y,z,split", *rows]))
    assert annotations.labels.tolist() == [[1, -1, -1], [0, 1, 1]]
    assert annotations.splits.tolist() == ["train", "test"]
    assert [(f.kind, f.where.rsplit(":")[-1]) for f in annotations.findings] == [
        ("bad value", "3"),
        ("missing image", "4"),
        ("duplicate row", "5"),
        ("unknown split", "6"),
    ]


def test_a_bad_value_is_unknown_and_no_blank(photos: Path) -> None:
    text = "image,x,y\na.jpg,1,0\nb.jpg,maybe,1\nc.jpg,0,1\n"
    assert read(photos, text).labels.tolist() == [[1, 0], [0, 1], [0, 1]]
    assert read(photos, text, complete=True).labels.tolist() == [[1, -1], [0, 1], [-1, 1]]


def test_onehot_columns_chosen_by_name(photos: Path) -> None:
    text = "image,x,y\na.jpg,1,-1\n"
    assert read(photos, text, categories=["y"]).labels.tolist() == [[-1]]
    with pytest.raises(UserError, match="has no column 'w'"):
        read(photos, text, categories=["w"])


def test_onehot_without_header_or_rows(photos: Path) -> None:
    with pytest.raises(UserError, match="no header line"):
        read(photos, "a.jpg,1,0\n", format="onehot")
    with pytest.raises(DataError, match="no usable image"):
        read(photos, "image,x\na.jpg,1\n".replace("image,x", "image,x,split").replace(",1", ",1,odd"))


def test_one_column_of_zeros_and_ones_beside_words_is_not_a_onehot_table(photos: Path) -> None:
    with pytest.raises(UserError, match="Which column"):
        read(photos, "image,caption,reviewed\na.jpg,a red cat,1\nb.jpg,a dog,0\n")
    assert read(photos, "image,cat,split\na.jpg,1,train\nb.jpg,-1,test\n").categories == ["cat"]


# --- matrices without a header ---


@pytest.mark.parametrize("between", [" ", "  ", ",", "\t"])
def test_a_matrix_without_header_is_refused_until_its_columns_have_names(photos: Path, between: str) -> None:
    """Read as a list of tags, it would have the tags "1" and "NA"."""
    rows = [["a.jpg", "1", "NA", "0"], ["b.jpg", "0", "1", "NA"], ["c.jpg", "NA", "1", "1"]]
    text = "\n".join(between.join(row) for row in rows)
    with pytest.raises(UserError, match=r"no header line, so the names of its 3 tags .*-o categories="):
        read(photos, text)
    with pytest.raises(UserError, match="2 were given"):
        read(photos, text, categories=["cat", "dog"])
    named = read(photos, text, categories=["cat", "dog", "sea"])
    assert named.labels.tolist() == [[1, 0, -1], [-1, 1, 0], [0, 1, 1]]


def test_a_matrix_whose_header_names_the_values_only(photos: Path) -> None:
    """CelebA: the number of images, the attributes, then rows that end in a space."""
    read_as = read(photos, "3\nBald Smiling\na.jpg  1 -1 \nb.jpg -1 -1 \nc.jpg -1  1 \n")
    assert read_as.categories == ["Bald", "Smiling"]
    assert read_as.labels.tolist() == [[1, -1], [-1, -1], [-1, 1]]


def test_words_after_a_space_are_tags(photos: Path) -> None:
    assert tags_of(read(photos, "a.jpg cat dog\nb.jpg cat\nc.jpg sea\n")) == {
        "a.jpg": {"cat", "dog"},
        "b.jpg": {"cat"},
        "c.jpg": {"sea"},
    }


def test_the_number_of_a_class_is_no_matrix(photos: Path) -> None:
    assert read(photos, "a.jpg,0\nb.jpg,1\n").categories == ["0", "1"]

"""Which files a label file means: untagged photos, other machines' paths, paths that lead out, RAW and HEIC."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewtags.data import image_files
from fewtags.data.annotations import Annotations
from fewtags.data.formats import read_annotations
from fewtags.errors import UserError


def make(root: Path, names: list[str], tags: str = "") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    if tags:
        (root.parent / "tags.csv").write_text(tags)
    return root


def read(photos: Path, **options: object) -> Annotations:
    return read_annotations(photos, tags=photos.parent / "tags.csv", **options)


def test_photos_in_no_row_are_kept_as_unknown_and_counted(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["a.jpg", "b.jpg", "sub/c.jpg"], "image,tags\nb.jpg,cat;-dog\n")
    annotations = read(photos)
    assert annotations.images == ["b.jpg", "a.jpg", "sub/c.jpg"]
    assert annotations.labels.tolist() == [[1, -1], [0, 0], [0, 0]]
    assert f"2 images in {photos} without a row kept as unknown." in annotations.notes
    assert len(read(photos, keep_untagged=False)) == 1


def test_a_complete_list_is_of_chosen_images(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["a.jpg", "b.jpg"], "image,tags\nb.jpg,cat\n")
    assert read(photos, complete=True).images == ["b.jpg"]
    kept = read(photos, complete=True, keep_untagged=True)
    assert kept.labels.tolist() == [[1], [0]]  # nothing is known about the other


def test_a_row_that_was_left_out_does_not_come_back_as_unknown(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["a.jpg", "b.jpg"], "image,tags,split\na.jpg,cat,train\nb.jpg,cat,odd\n")
    assert read(photos).images == ["a.jpg"]


def test_untagged_photos_beside_a_onehot_table(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["a.jpg", "b.jpg"], "image,cat,dog\na.jpg,1,\n")
    assert read(photos).labels.tolist() == [[1, 0], [0, 0]]
    (tmp_path / "tags.csv").write_text("image,cat,dog\na.jpg,1,0\n")
    assert read(photos, zero="absent").images == ["a.jpg"]


@pytest.mark.parametrize(
    "prefix", ["C:\\photos\\", "D:\\Users\\anna\\Pictures\\", "/home/anna/photos/", "\\\\nas\\photos\\"]
)
def test_folders_of_other_machines_are_mapped_to_the_folder_given(tmp_path: Path, prefix: str) -> None:
    lines = [f"{prefix}2021\\x.jpg,cat", f"{prefix}2022\\y.jpg,dog", f"{prefix}2022\\gone.jpg,dog"]
    if prefix.startswith("/"):
        lines = [line.replace("\\", "/") for line in lines]
    photos = make(tmp_path / "photos", ["2021/x.jpg", "2022/y.jpg"], "\n".join(["image,tags", *lines]))
    annotations = read(photos)
    assert (annotations.root, annotations.images) == (photos, ["2021/x.jpg", "2022/y.jpg"])
    assert any(prefix.replace("\\", "/") in note and "was read as" in note for note in annotations.notes)
    assert len(annotations.findings) == 1


def test_paths_that_lead_out_are_refused_unless_allowed(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["a.jpg"], "image,tags\na.jpg,cat\n../secret.jpg,dog\nx/../../secret.jpg,dog\n")
    make(tmp_path, ["secret.jpg"])
    annotations = read(photos)
    assert annotations.images == ["a.jpg"]
    assert [finding.kind for finding in annotations.findings] == ["image outside the folder"] * 2
    assert "--allow-outside" in annotations.findings[0].message
    allowed = read(photos, allow_outside=True)
    assert [allowed.path(row).resolve() for row in range(2)] == [photos / "a.jpg", tmp_path / "secret.jpg"]


def test_absolute_paths_are_fine_inside_the_folder_and_refused_outside(tmp_path: Path) -> None:
    photos = make(
        tmp_path / "photos", ["a.jpg"], f"image,tags\n{tmp_path}/photos/a.jpg,cat\n{tmp_path}/secret.jpg,dog\n"
    )
    make(tmp_path, ["secret.jpg"])
    annotations = read(photos)
    assert annotations.images == ["a.jpg"]
    assert [finding.kind for finding in annotations.findings] == ["image outside the folder"]
    (tmp_path / "tags.csv").write_text("image,tags\n/etc/passwd.jpg,cat\n")
    with pytest.raises(UserError, match=r"are outside .*; pass their folder.* or use --allow-outside"):
        read(photos)


def test_a_bare_name_is_the_only_photo_of_that_name_below(tmp_path: Path) -> None:
    names = ["2021/x.jpg", "2021/twice.jpg", "2022/twice.jpg", "2022/y.jpg"]
    photos = make(tmp_path / "photos", names, "image,tags\nx.jpg,cat\ny,dog\ntwice.jpg,cow\n")
    annotations = read(photos, keep_untagged=False)
    assert annotations.images == ["2021/x.jpg", "2022/y.jpg"]
    assert any("2 images were found by name" in note for note in annotations.notes)
    assert annotations.findings[0].kind == "missing image"


def test_a_missing_photo_is_not_taken_for_another_of_its_name(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["x.jpg", "a.jpg"], "image,tags\n2021/x.jpg,cat\na.jpg,dog\n")
    assert read(photos, keep_untagged=False).images == ["a.jpg"]


def test_case_and_accents_of_file_names_may_differ(tmp_path: Path) -> None:
    photos = make(
        tmp_path / "photos", ["IMG_1.JPG", "Zu\u0308rich.jpg"], "image,tags\nimg_1.jpg,cat\nZ\u00fcrich.jpg,sea\n"
    )
    assert read(photos).images == ["IMG_1.JPG", "Zu\u0308rich.jpg"]


def test_raw_and_heic_are_called_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "heif_is_installed", lambda: False)
    monkeypatch.setattr(image_files, "raw_is_installed", lambda: False)
    lines = "image,tags\na.jpg,cat\nb.CR2,cat\nc.heic,cat\nd.nef,cat\ngone.dng,cat\n"
    photos = make(tmp_path / "photos", ["a.jpg", "b.CR2", "c.heic", "d.nef", "d.jpg", "e.arw"], lines)
    annotations = read(photos)
    assert annotations.images == ["a.jpg", "d.jpg"]  # the JPEG of a RAW and JPEG pair
    assert [(f.kind, f.where.rsplit(":")[-1]) for f in annotations.findings] == [
        ("unsupported image", "3"),
        ("unsupported image", "4"),
        ("missing image", "6"),
    ]
    assert "b.CR2 is a RAW photo, which needs an extra: pip install 'fewtags[raw]'" in annotations.findings[0].message
    assert "pip install 'fewtags[heic]'" in annotations.findings[1].message
    assert (
        f"Skipped in {photos}: 1 HEIC photo (to read them: pip install 'fewtags[heic]') and 2 RAW photos"
        in annotations.notes[-1]
    )


def test_only_raw_photos_end_in_a_sentence_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "raw_is_installed", lambda: False)
    photos = make(tmp_path / "photos", ["a.cr2"], "image,tags\na.cr2,cat\n")
    with pytest.raises(UserError, match=r"a\.cr2, is a RAW photo"):
        read(photos)


def test_a_tree_by_years_is_commented(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["2019/a.jpg", "2020-05 Rome/b.jpg", "DCIM/c.jpg"])
    annotations = read_annotations(photos)
    assert annotations.categories == ["2019", "2020-05 Rome", "DCIM"]
    assert [finding.kind for finding in annotations.findings] == ["doubtful tags"]
    assert any("look like dates" in note for note in annotations.notes)
    tags = make(tmp_path / "tags", ["cat/a.jpg", "dog/b.jpg", "2019/c.jpg"])
    assert read_annotations(tags).findings == []


def test_predictions_are_read_back_as_tags(tmp_path: Path) -> None:
    photos = make(tmp_path / "photos", ["a.jpg", "b.jpg", "c.jpg"])
    lines = [
        f'{{"image": "{photos}/a.jpg", "tags": {{"cat": 0.93, "dog": 0.55}}}}',
        f'{{"image": "{photos}/b.jpg", "tags": {{}}, "error": "b.jpg: the file has zero bytes."}}',
        f'{{"image": "{photos}/c.jpg", "tags": {{}}}}',
    ]
    (tmp_path / "found.jsonl").write_text("\n".join(lines))
    annotations = read_annotations(photos, tags=tmp_path / "found.jsonl")
    assert annotations.images[:2] == ["a.jpg", "c.jpg"]
    assert annotations.labels[:2].tolist() == [[1, 1], [0, 0]]
    assert [finding.kind for finding in annotations.findings] == ["unreadable image"]
    surer = read_annotations(photos, tags=tmp_path / "found.jsonl", min_probability=0.9)
    assert surer.categories == ["cat"]
    (tmp_path / "found.csv").write_text(f"image,tags,probabilities,error\n{photos}/a.jpg,'=cat;dog,0.9;0.6,\n")
    assert read_annotations(photos, tags=tmp_path / "found.csv").categories == ["=cat", "dog"]

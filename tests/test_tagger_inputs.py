"""What a Tagger takes (texts of tags, data frames, pictures in memory, features), and how it refuses the rest."""

from __future__ import annotations

import shutil

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from fewtags import Annotations, Tagger
from fewtags.errors import UserError
from made_taggers import make


@pytest.fixture(scope="module")
def tagger(patches) -> Tagger:
    return make().fit(patches)


def lists(patches: Annotations) -> tuple[list[str], list[list[str]]]:
    paths = [str(patches.path(row)) for row in range(len(patches))]
    tags = [[c for c, label in zip(patches.categories, row, strict=True) if label == 1] for row in patches.labels]
    return paths, tags


# --- learning ---


@pytest.mark.parametrize("between", [", ", "; ", "|"])
def test_texts_are_split_into_tags(between, patches):
    """As a data frame's column has them; never into letters."""
    paths, tags = lists(patches)
    column = pandas.Series([between.join(row) if row else None for row in tags])
    by_texts, by_lists = (make().fit(paths, given) for given in (column, tags))
    assert by_texts.classes_.tolist() == ["blue", "green", "red"]
    np.testing.assert_array_equal(by_texts.predict_proba(paths[:4]), by_lists.predict_proba(paths[:4]))


def test_from_data_frames(patches):
    """Images and tags in one, with splits; names relative to a folder; a column for each class."""
    paths, tags = lists(patches)
    frame = pandas.DataFrame({"image": paths, "tags": list(map(", ".join, tags)), "split": patches.splits})
    in_folder = frame.assign(image=patches.images)
    matrix = pandas.DataFrame((patches.labels == 1).astype(int), columns=patches.categories)
    first = make().fit(frame)
    assert [row["split"] for row in first.history_ if row["kind"] == "eval"] == ["test"]
    again = make().fit(patches.root, in_folder)
    np.testing.assert_array_equal(first.predict_proba(frame), again.predict_proba(paths))
    assert make().fit(paths, matrix).classes_.tolist() == patches.categories
    assert first.score(frame) == pytest.approx(first.score(paths, tags))
    pictures = frame.assign(image=[Image.open(path) for path in paths])
    # Features of many files are kept in half precision.
    np.testing.assert_allclose(first.predict_proba(pictures), first.predict_proba(frame), atol=1e-4)
    np.testing.assert_allclose(first.predict_proba(pictures[:8]), first.predict_proba(frame[:8]), atol=1e-6)
    in_memory = make().fit(pictures)
    assert in_memory.classes_.tolist() == ["blue", "green", "red"]
    assert [row["split"] for row in in_memory.history_ if row["kind"] == "eval"] == ["test"]
    for lacking in (frame[["image"]], frame[["tags"]]):
        with pytest.raises(UserError, match="The DataFrame has the columns"):
            make().fit(lacking)


def test_from_pictures_in_memory(patches, tmp_path):
    """The same as from their files."""
    paths, tags = lists(patches)
    pictures = [Image.open(path) for path in paths]
    from_files, in_memory = make().fit(paths, tags), make(out=tmp_path / "run").fit(pictures, tags)
    np.testing.assert_array_equal(in_memory.predict_proba(paths), from_files.predict_proba(paths))
    assert len(list((tmp_path / "run/pictures").iterdir())) == 48
    assert in_memory.score(pictures, tags) == pytest.approx(from_files.score(paths, tags))


def test_a_tag_file_goes_with_a_folder(patches):
    with pytest.raises(UserError, match=r"tags\.csv goes with an image folder"):
        make().fit(lists(patches)[0], "tags.csv")


def test_an_option_for_files_is_not_ignored(patches):
    paths, tags = lists(patches)
    with pytest.raises(UserError, match="zero= is an option for reading files"):
        make().fit(paths, tags, zero="absent")
    assert make().fit(paths, tags, complete=True).classes_.tolist() == ["blue", "green", "red"]


# --- predicting ---


def test_predict_with_another_threshold_and_at_most_so_many(patches, tagger):
    probabilities = tagger.predict_proba(patches)
    everything = tagger.predict(patches, threshold=0)
    assert all(len(tags) == 3 for tags in everything)
    assert [tags[0] for tags in everything] == tagger.classes_[probabilities.argmax(1)].tolist()
    assert tagger.predict(patches, threshold=0, top=1) == [tags[:1] for tags in everything]
    assert tagger.predict(patches, threshold=1) == [[]] * 48
    assert tagger.predict(patches, threshold=np.array([0, 1, 1])) == [[str(tagger.classes_[0])]] * 48
    for wrong in ({"threshold": [0.5, 0.5]}, {"top": 0}):
        with pytest.raises(UserError):
            tagger.predict(patches, **wrong)


def test_pictures_in_memory_get_what_their_files_get(patches, tagger):
    paths = [patches.path(row) for row in range(3)]
    pictures = [Image.open(path) for path in paths]
    arrays = np.stack([np.asarray(picture) for picture in pictures])
    expected = tagger.predict_proba(paths)
    for given in (pictures, arrays, list(arrays), [paths[0], pictures[1], arrays[2]]):
        np.testing.assert_allclose(tagger.predict_proba(given), expected, atol=1e-6)
        np.testing.assert_allclose(tagger.features(given), tagger.features(paths), atol=1e-6)
    for one in (pictures[0], arrays[0], paths[0], str(paths[0])):
        np.testing.assert_allclose(tagger.predict_proba(one), expected[:1], atol=1e-6)
    assert tagger.predict(pictures) == tagger.predict(paths)


def test_pictures_in_memory_are_set_upright_and_made_rgb(tagger, tmp_path):
    """As they would be from a file: rotated by EXIF, transparency over white, grey."""
    pixels = np.random.default_rng(0).integers(0, 255, (40, 30, 4), dtype=np.uint8)
    turned = Image.fromarray(pixels[:, :, :3])
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(pixels).save(tmp_path / "clear.png")
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "grey.png")
    files = [tmp_path / f"{name}.png" for name in ("turned", "clear", "grey")]
    opened = [Image.open(file) for file in files]
    np.testing.assert_allclose(tagger.predict_proba(opened), tagger.predict_proba(files), atol=1e-6)
    np.testing.assert_allclose(
        tagger.predict_proba([pixels, pixels[:, :, 0], pixels[:, :, :1]]),
        tagger.predict_proba([files[1], files[2], files[2]]),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "shape", [(3, 32, 32, "float32"), (32, 32, 3, "float64"), (32, 32, 7, "uint8"), (0, 4, 3, "uint8")]
)
def test_an_array_that_is_no_picture_is_refused(shape, tagger):
    with pytest.raises(UserError, match=r"image 0: (an array should be uint8 of shape|it has no pixels)"):
        tagger.predict([np.zeros(shape[:3], shape[3])])


def test_what_is_no_image_is_refused(tagger):
    with pytest.raises(UserError, match="not int"):
        tagger.predict([5])


# --- features ---


def test_features_leave_out_what_cannot_be_read_and_say_so(tagger, patches, tmp_path):
    for name in ("a.png", "c.png"):
        shutil.copy(patches.path(0), tmp_path / name)
    (tmp_path / "b.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"Skipped: .*b\.png"):
        features, paths = tagger.features(tmp_path, return_paths=True)
    assert paths == [str(tmp_path / "a.png"), str(tmp_path / "c.png")]
    assert features.shape[0] == 2
    with pytest.warns(UserWarning, match=r"b\.png"):
        np.testing.assert_array_equal(tagger.features(tmp_path), features)
    with pytest.raises(UserError, match="None of the images could be read"), pytest.warns(UserWarning, match=r"b\.png"):
        tagger.features(tmp_path / "b.png")


@pytest.fixture(scope="module")
def instant(patches, tmp_path_factory) -> Tagger:
    """Saved and loaded, as one is used."""
    folder = tmp_path_factory.mktemp("instant")
    make(method="instant").fit(patches).save(folder)
    return Tagger.load(folder)


def test_rerank_gives_rows_and_probabilities_in_the_same_order(instant, patches):
    train = patches.split("train")
    rows, probabilities = instant.rerank("red", instant.features(train))
    assert (np.diff(probabilities) <= 0).all()
    assert sorted(rows) == list(range(36))
    np.testing.assert_allclose(probabilities, instant.predict_proba(train)[rows, 0], atol=1e-4)


def test_features_of_another_shape_are_refused(instant, patches):
    features = instant.features(patches.path(0))
    not_finite = np.full(features.shape[1], np.nan, np.float32)
    for wrong in (features, features[0, :5], "red", features[0].astype(int), not_finite):
        with pytest.raises(UserError, match=r"Features of this tagger have the shape \[\d+\]|not finite"):
            instant.relabel(wrong, "red", 1)
    for wrong in (features[0], features[:, :5], features[None]):
        with pytest.raises(UserError, match=r"Features of this tagger have the shape \[N, \d+\]"):
            instant.rerank("red", wrong)
    for label in (2, None, "yes"):
        with pytest.raises(UserError, match=r"should be 1 \(present\), 0 \(unknown\) or -1 \(absent\)"):
            instant.relabel(features[0], "red", label)


# --- tensors ---


def tensor_of(patches: Annotations) -> torch.Tensor:
    pictures = [np.asarray(Image.open(patches.path(row)).convert("RGB")) for row in range(len(patches))]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


def test_tensors_are_the_pictures_they_hold(tagger, patches):
    """Of bytes or from 0 to 1, all at once, one, or in a list."""
    pixels = tensor_of(patches)[:6]
    expected = tagger.predict_proba([patches.path(row) for row in range(6)])
    for images in (pixels, pixels.float() / 255, list(pixels)):
        np.testing.assert_allclose(tagger.predict_proba(images), expected, atol=1e-5)
    np.testing.assert_allclose(tagger.predict_proba(pixels[0]), expected[:1], atol=1e-5)


def test_a_data_loader_of_images_and_labels(tagger, patches):
    pixels, labels = tensor_of(patches), torch.from_numpy(patches.labels)
    loader = DataLoader(TensorDataset(pixels, labels), batch_size=16)
    fitted = make(classes=patches.categories).fit(loader)
    assert fitted.classes_.tolist() == patches.categories
    assert fitted.score(loader) > 0.5
    assert len(tagger.predict(DataLoader(TensorDataset(pixels), batch_size=7))) == len(patches)


def test_normalised_tensors_and_other_shapes_are_refused(tagger, patches):
    pixels = tensor_of(patches)[:2].float() / 255
    with pytest.raises(UserError, match="Do not normalise"):
        tagger.predict((pixels - 0.5) / 0.2)
    with pytest.raises(UserError, match=r"\[N, 3, H, W\]"):
        tagger.predict(torch.zeros(8, 8, dtype=torch.uint8))


# --- what passed silently ---


def test_numbers_are_no_tags(patches):
    paths, _ = lists(patches)
    for tags in ([1] * len(paths), [[0]] * len(paths), [0.5] * len(paths)):
        with pytest.raises(UserError, match=r"image 0 hold the number .* classes="):
            make().fit(paths, tags)


def test_a_threshold_is_a_probability(tagger, patches):
    for threshold in (5, -0.1, np.array([0.5, 0.5, 1.5])):
        with pytest.raises(UserError, match="from 0 to 1"):
            tagger.predict([patches.path(0)], threshold=threshold)


def test_settings_as_one_text_or_as_a_dict():
    wanted = Tagger(settings=["train.epochs=5"], method="an")._config()
    for settings in ("train.epochs=5", {"train.epochs": 5}, {"train": {"epochs": 5}}):
        assert Tagger(settings=settings, method="an")._config() == wanted
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        Tagger(settings={"train.epoch": 5}, method="an")._config()


def test_repr_is_the_call_that_makes_the_same():
    tagger = Tagger("refined", epochs=3, settings={"input.size": 64}, classes=["a", "b"], seed=7)
    assert eval(repr(tagger)).get_params() == tagger.get_params()
    assert repr(Tagger()) == f"Tagger(method='instant', backbone={Tagger().backbone!r})"

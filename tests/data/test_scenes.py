import json

import numpy as np
import pytest
from PIL import Image, ImageDraw
from sklearn.linear_model import LogisticRegression

from fewtags.data.annotations import Annotations
from fewtags.data.scenes import draw_scene, make_scenes
from fewtags.data.scenes.composition import Placed, choose_categories, compose, render
from fewtags.data.scenes.objects import OBJECTS
from fewtags.data.scenes.places import PLACES
from fewtags.errors import UserError

CATEGORIES = list(OBJECTS)


@pytest.fixture(scope="module")
def many():
    """Colour histograms [N, 3 x 8] and truth [N, C] of small scenes."""
    scenes = [draw_scene(np.random.default_rng([7, i]), size=32) for i in range(700)]
    histograms = [np.reshape(image.histogram(), (-1, 32)).sum(1) / 32**2 for image, _ in scenes]
    return np.array(histograms), np.array([[c in present for c in CATEGORIES] for _, present in scenes])


def test_the_same_generator_draws_the_same_scene():
    first, second = (draw_scene(np.random.default_rng([3, 1])) for _ in range(2))
    assert first[1] == second[1]
    np.testing.assert_array_equal(np.asarray(first[0]), np.asarray(second[0]))
    other = draw_scene(np.random.default_rng([3, 2]))[0]
    assert not np.array_equal(np.asarray(first[0]), np.asarray(other))


def test_visible_shares_are_those_of_the_drawn_pixels():
    """Against each object drawn alone, minus everything drawn alone that lies before it, cut to the image."""
    size, shares = 64, []
    for seed in range(12):
        scene = compose(np.random.default_rng(seed))
        for k, share in render(scene, size)[1].items():
            whole = _pixels(scene[k], size)
            covered = np.any([_pixels(nearer, size) for nearer in scene[k + 1 :]], axis=0) if scene[k + 1 :] else False
            in_image = np.zeros_like(whole)
            in_image[size : 2 * size, size : 2 * size] = True
            shares.append((share, (whole & ~covered & in_image).sum() / whole.sum()))
    reported, expected = np.array(shares).T
    np.testing.assert_allclose(reported, expected, atol=0.03)  # one follows objects further out than the other
    assert (expected < 0.9).any()  # occlusion happens


def _pixels(placed, size):
    """Where a sketch lies, on a canvas of three by three images with the image in the middle."""
    canvas = Image.new("1", (3 * size, 3 * size))
    for _, corners in placed.sketch.shapes:
        points = [tuple(placed.matrix @ corner + placed.offset) for corner in corners]
        ImageDraw.Draw(canvas).polygon([(size + x * size, size + y * size) for x, y in points], fill=1)
    return np.array(canvas)


def test_hidden_objects_are_not_listed(monkeypatch):
    """A ball behind a house is neither drawn nor listed."""
    rng = np.random.default_rng(0)
    background = compose(rng)[0]
    ball = Placed(OBJECTS["ball"].sketch(rng), np.eye(2) / 50, np.array([0.5, 0.5]), "ball")
    house = Placed(OBJECTS["house"].sketch(rng), np.eye(2), np.zeros(2), "house")
    assert render([background, ball, house], 96)[1] == {1: 0.0, 2: pytest.approx(1, abs=0.05)}
    monkeypatch.setattr("fewtags.data.scenes.composition.compose", lambda rng: [background, ball, house])
    assert draw_scene(rng)[1] == {"house"}


def test_every_category_occurs_and_some_far_more_often(many):
    frequency = many[1].mean(0)
    assert frequency.min() > 0.02
    assert 0.25 < frequency.max() < 0.45
    assert 2.0 < many[1].sum(1).mean() < 2.8
    assert many[1].sum(1).min() >= 1
    assert many[1].sum(1).max() <= 5


@pytest.mark.parametrize(
    ("first", "second"), [("table", "chair"), ("person", "dog"), ("table", "cup"), ("boat", "bird")]
)
def test_companions_are_seen_together(many, first, second):
    truth = many[1]
    a, b = truth[:, CATEGORIES.index(first)], truth[:, CATEGORIES.index(second)]
    assert (a & b).mean() > 1.1 * a.mean() * b.mean()


def test_a_person_comes_with_a_dog_more_often_within_one_place():
    rng = np.random.default_rng(0)
    chosen = [set(choose_categories(PLACES["park"], rng)) for _ in range(2000)]
    dogs = np.array(["dog" in names for names in chosen])
    people = np.array(["person" in names for names in chosen])
    assert dogs[people].mean() > dogs.mean()


def test_colour_does_not_give_the_categories_away(many):
    """A classifier of colour histograms ranks held-out scenes hardly better than chance."""
    colours, truth = many
    areas = []
    for c in range(len(CATEGORIES)):
        model = LogisticRegression(max_iter=200).fit(colours[:500], truth[:500, c])
        scores, positive = model.decision_function(colours[500:]), truth[500:, c]
        areas.append((scores[positive][:, None] > scores[~positive]).mean())  # area under the ROC curve
    assert np.mean(areas) < 0.58


def test_a_larger_set_contains_the_smaller_one(tmp_path):
    small = make_scenes(tmp_path / "small", 3, 2, seed=4, size=32)
    large = make_scenes(tmp_path / "large", 5, 4, seed=4, size=32)
    for row, image in enumerate(small.images):
        same = large.images.index(image)
        assert large.path(same).read_bytes() == small.path(row).read_bytes()
        np.testing.assert_array_equal(large.labels[same], small.labels[row])
    assert {small.path(row).read_bytes() for row in range(3)}.isdisjoint(small.path(row).read_bytes() for row in (3, 4))


def test_the_annotations_are_complete_and_saved(tmp_path):
    made = make_scenes(tmp_path, 3, 2, size=32)
    assert made.name == "scenes"
    assert made.complete
    assert made.splits.tolist() == ["train"] * 3 + ["test"] * 2
    assert Annotations.load(tmp_path / "annotations.jsonl").content_hash() == made.content_hash()
    assert all(Image.open(made.path(row)).size == (32, 32) for row in range(5))


def test_a_finished_folder_is_not_drawn_again(tmp_path, monkeypatch):
    first = make_scenes(tmp_path, 3, 2, size=32)
    monkeypatch.setattr("fewtags.data.scenes.folder.draw_scene", lambda *_: pytest.fail("drawn again"))
    assert make_scenes(tmp_path, 3, 2, size=32).content_hash() == first.content_hash()


def test_an_interrupted_folder_is_completed(tmp_path, monkeypatch):
    whole = make_scenes(tmp_path / "whole", 3, 2, size=32)
    calls = iter(range(4))

    def interrupted(*arguments):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return draw_scene(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("fewtags.data.scenes.folder.draw_scene", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_scenes(tmp_path / "half", 3, 2, size=32)
    (tmp_path / "half" / "train" / "00002.jpg").write_bytes(b"cut off")
    half = make_scenes(tmp_path / "half", 3, 2, size=32)
    assert half.content_hash() == whole.content_hash()
    assert [half.path(row).read_bytes() for row in range(5)] == [whole.path(row).read_bytes() for row in range(5)]


def test_another_recipe_is_drawn_anew(tmp_path):
    make_scenes(tmp_path, 3, 2, seed=0, size=32)
    changed = make_scenes(tmp_path, 3, 2, seed=1, size=32)
    fresh = make_scenes(tmp_path / "fresh", 3, 2, seed=1, size=32)
    assert changed.content_hash() == fresh.content_hash()
    assert changed.path(0).read_bytes() == fresh.path(0).read_bytes()
    assert json.loads((tmp_path / "recipe.json").read_text())["seed"] == 1


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(UserError, match="not scenes"):
        make_scenes(tmp_path, 3, 2, size=32)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]

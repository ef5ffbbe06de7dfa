"""Mixing the score of an image's best window with that of the whole: left out exactly, and only as much as it helps."""

import pytest
import torch

from fewtags.contract import Batch
from fewtags.metrics import mean_average_precision
from fewtags.models.best_window import BestWindow, LeftOutWindows, overlapping_by_half, unit_windows
from fewtags.models.closed_form import ClosedFormHead
from fewtags.models.discriminant import Discriminant, DiscriminantSums, unit_length
from fewtags.models.names import NameScorer

DIM, CATEGORIES = 20, 3


def made_maps(where, num_images=500, side=7, seed=0, known=0.4):
    """Maps, truth and known labels; a category shows at one place, or everywhere."""
    directions = torch.randn(CATEGORIES, DIM, generator=torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(num_images, CATEGORIES, generator=generator) < 0.25
    maps = torch.randn(num_images, DIM, side, side, generator=generator) + 1
    if where == "everywhere":
        maps = maps + 2 * torch.randn(num_images, DIM, side, side, generator=generator)
        maps += 0.15 * (truth.float() @ directions)[:, :, None, None]
    else:
        for image, category in truth.nonzero():
            row, column = torch.randint(0, side, (2,), generator=generator)
            maps[image, :, row, column] += 6 * directions[category]
    shown = torch.rand(truth.shape, generator=generator) < known
    return maps, truth, (truth & shown).to(torch.int8)


def in_batches(maps, labels, size=64):
    return [Batch(maps[rows], labels[rows], rows) for rows in torch.arange(len(maps)).split(size)]


@torch.no_grad()
def started(maps, labels, names=None, **settings):
    head = ClosedFormHead(ClosedFormHead.Config(**settings), DIM, CATEGORIES).eval()
    head.use_names(names)
    head.start(in_batches(maps, labels), len(maps))
    return head


def window_scores_without(image, maps, labels, penalty):
    """[L, C] x' A m of the image's windows, with everything computed from the other images; scaled as in the fit."""
    pooled = unit_length(maps.mean((2, 3))).double()
    mean, scale = pooled.mean(0), pooled.std(0, correction=0)
    others = torch.arange(len(maps)) != image
    x = (pooled - mean) / scale
    windows = (unit_windows(maps[image : image + 1], 3)[0][0].double() - mean) / scale
    centre = x[others].mean(0)
    centred = x[others] - centre
    # Of N - 1 images, but divided as the sums of all are, so that the penalty means the same.
    second = centred.T @ centred / len(x)
    gain = torch.linalg.inv(second + penalty * torch.eye(DIM, dtype=torch.float64))
    known = (labels == 1)[others].double()
    prototypes = known.T @ centred / known.sum(0)[:, None]
    return (windows - centre) @ gain @ prototypes.T


@pytest.mark.parametrize("num_images", [15, 60, 300])
def test_a_left_out_window_is_scored_as_if_its_image_did_not_exist(num_images):
    maps, _, labels = made_maps("one place", num_images)
    labels[:3] = 1  # every category has some
    pooled = maps.mean((2, 3))
    model = Discriminant(CATEGORIES, DIM)
    images, choice = model.fit(DiscriminantSums.of(pooled, labels), pooled, labels, penalties=(0.5,))
    weights = (labels == 1).float()
    windows = LeftOutWindows(model, images, weights, torch.arange(num_images))
    left_out = windows.left_out
    for image in (0, 5, 11):
        rows = torch.tensor([image])
        found = windows._best(rows, unit_windows(maps[rows], 3)[0], None)[0]
        truth = window_scores_without(image, maps, labels, choice.penalty).amax(0).float()
        reliable = left_out._less_reliable(weights[image], left_out.count) * left_out._factor()
        torch.testing.assert_close(found / reliable, truth, rtol=0.05, atol=0.02 * float(truth.abs().max()))


def test_what_shows_at_one_place_is_found_better():
    maps, _, labels = made_maps("one place")
    new, truth, _ = made_maps("one place", seed=1)
    plain, mixed = started(maps, labels), started(maps, labels, windows=True)
    assert mixed.best_window.share > 0.2
    before, after = (mean_average_precision(head(new).logits.numpy(), truth.numpy()) for head in (plain, mixed))
    assert after > before + 0.02


def test_what_shows_everywhere_hardly_suffers():
    maps, _, labels = made_maps("everywhere", 1500, known=0.8)
    new, truth, _ = made_maps("everywhere", 1500, seed=1)
    plain, mixed = started(maps, labels), started(maps, labels, windows=True)
    assert mixed.best_window.share < 0.2
    before, after = (mean_average_precision(head(new).logits.numpy(), truth.numpy()) for head in (plain, mixed))
    assert after > before - 0.01


def test_the_mix_is_calibrated():
    maps, _, labels = made_maps("one place", 1500)
    new, truth, _ = made_maps("one place", 1500, seed=1)
    head = started(maps, labels, windows=True)
    chance = head(new).logits.sigmoid()
    assert float(chance.sum()) == pytest.approx(float(truth.sum()), rel=0.15)
    given = chance >= head.thresholds
    assert float(truth[given].float().mean()) == pytest.approx(float(chance[given].mean()), abs=0.08)


def test_a_mix_has_the_mean_and_spread_of_whole_images_scores():
    whole, windows = torch.randn(50, CATEGORIES), torch.randn(50, 6, CATEGORIES)
    best = windows.amax(1)
    mix = BestWindow(CATEGORIES)
    assert torch.equal(mix(whole, windows), whole)
    factor = whole.std(0) / best.std(0)
    mix.set(0.25, factor, whole.mean(0) - factor * best.mean(0))
    expected = 0.75 * whole + 0.25 * (whole.mean(0) + (best - best.mean(0)) / best.std(0) * whole.std(0))
    torch.testing.assert_close(mix(whole, windows), expected)


@pytest.mark.parametrize(
    ("grid", "side", "rows", "columns"),
    [((5, 5), 3, [0, 2, 4], [0, 2, 4]), ((4, 1), 3, [0, 2, 3], [0]), ((7, 6), 1, list(range(7)), list(range(6)))],
)
def test_windows_that_overlap_by_half_reach_every_edge(grid, side, rows, columns):
    expected = [row * grid[1] + column for row in rows for column in columns]
    assert overlapping_by_half(grid, side).tolist() == expected


def test_maps_of_one_window_are_whole_images():
    maps, _, labels = made_maps("one place", side=3)
    plain, mixed = started(maps, labels), started(maps, labels, windows=True)
    assert torch.equal(plain(maps).logits, mixed(maps).logits)


def test_names_of_windows_count_too():
    maps, truth, labels = made_maps("one place", 300, known=0.05)
    directions = torch.randn(CATEGORIES, DIM, generator=torch.Generator().manual_seed(9))
    names = NameScorer(
        torch.cat([directions, torch.zeros(1, DIM)]), torch.zeros(CATEGORIES + 1), torch.eye(CATEGORIES, CATEGORIES + 1)
    )
    plain, mixed = started(maps, labels, names), started(maps, labels, names, windows=True)
    before, after = (mean_average_precision(head(maps).logits.numpy(), truth.numpy()) for head in (plain, mixed))
    assert after > before + 0.02


def test_batches_in_any_order_and_size_choose_the_same():
    maps, _, labels = made_maps("one place")
    head = started(maps, labels, windows=True)
    other = ClosedFormHead(head.config, DIM, CATEGORIES).eval()
    with torch.no_grad():
        other.start(list(reversed(in_batches(maps, labels, 50))), len(maps))
    torch.testing.assert_close(head(maps).logits, other(maps).logits, rtol=1e-3, atol=1e-3)


def test_of_many_categories_a_sample_of_images_is_enough(monkeypatch):
    maps, _, labels = made_maps("one place")
    monkeypatch.setattr("fewtags.models.best_window.ENTRIES", 200 * CATEGORIES)
    head = started(maps, labels, windows=True)
    assert head.best_window.share > 0.2


def test_a_state_dict_carries_the_mix():
    maps, _, labels = made_maps("one place")
    head = started(maps, labels, windows=True, residual=True)
    fresh = ClosedFormHead(head.config, DIM, CATEGORIES).eval()
    fresh.load_state_dict(head.state_dict())
    assert torch.equal(fresh(maps).logits, head(maps).logits)

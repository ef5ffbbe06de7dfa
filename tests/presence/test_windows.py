"""The best window of an image: left out exactly, and of use where things are small."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from left_out_slowly import score_without

from fewtags.metrics import mean_average_precision
from fewtags.presence.fitting import fit_presence, fit_windows
from fewtags.presence.model import Presence
from fewtags.presence.ridge import ImageSums
from fewtags.presence.windows import best_left_out, overlapping_by_half, unit_windows

DIM, CATEGORIES = 20, 3


def made_maps(num_images=400, seed=0, known=0.4, side=7):
    """Maps in which a present category shows at one place; truth; labels of which some are known."""
    directions = torch.randn(CATEGORIES, DIM, generator=torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(num_images, CATEGORIES, generator=generator) < 0.25
    maps = torch.randn(num_images, DIM, side, side, generator=generator) + 1
    for image, category in truth.nonzero():
        row, column = torch.randint(0, side, (2,), generator=generator)
        maps[image, :, row, column] += 6 * directions[category]
    shown = torch.rand(truth.shape, generator=generator) < known
    return maps, truth, (truth & shown).to(torch.int8)


def fitted(maps, labels, **options):
    pooled, model = maps.mean((2, 3)), Presence(CATEGORIES, DIM)
    return fit_presence(model, ImageSums.of(pooled, labels), pooled, labels, **options)


@pytest.mark.parametrize("refine", [False, True])
def test_the_best_window_is_scored_as_if_its_image_did_not_exist(refine):
    maps, _, labels = made_maps(60)
    labels[:3] = 1  # every category has some
    fit = fitted(maps, labels, refine=refine)
    rows = torch.tensor([0, 5, 41])
    windows = unit_windows(maps[rows], 3)[0]
    found = best_left_out(fit, rows, windows, None)
    images, basis = fit.images, fit.images.ridge.basis
    for place, image in enumerate(rows.tolist()):
        at = ((windows[place] - basis.mean) / basis.scale) @ basis.vectors
        for category in range(CATEGORIES):
            without = score_without(images.ridge, images.rotated, images.weights, category, image, at)
            torch.testing.assert_close(found[place, category], without.max(), rtol=5e-3, atol=5e-3)


def test_names_of_windows_are_added_before_the_best_is_taken():
    maps, truth, labels = made_maps(60)
    names = (2 * truth + torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))).log_softmax(1)
    fit = fitted(maps, labels, names=names)
    windows, model = unit_windows(maps[:4], 3)[0], fit.model
    of_windows = torch.randn(4, windows.shape[1], CATEGORIES, generator=torch.Generator().manual_seed(2))
    one_by_one = [
        best_left_out(fit, torch.arange(4), windows[:, place : place + 1], None)
        + model.name_weight * model.standard_names(of_windows[:, place])
        for place in range(windows.shape[1])
    ]
    best = best_left_out(fit, torch.arange(4), windows, of_windows)
    torch.testing.assert_close(best, torch.stack(one_by_one).amax(0), rtol=1e-4, atol=1e-4)


def test_what_shows_at_one_place_is_found_better():
    maps, _, labels = made_maps()
    fit = fitted(maps, labels)
    model, new, truth = fit.model, *made_maps(seed=1)[:2]
    pooled, windows = new.mean((2, 3)), unit_windows(new, 3)[0]
    before = mean_average_precision(model.log_odds(pooled).numpy(), truth.numpy())
    fit_windows(fit, best_left_out(fit, torch.arange(len(maps)), unit_windows(maps, 3)[0], None))
    best = model.scores(windows.flatten(0, 1)).unflatten(0, windows.shape[:2]).amax(1)
    odds = model.odds_of(F.normalize(pooled), model.scores(F.normalize(pooled)), best)
    assert (model.window_slope > 0).all()
    assert mean_average_precision(odds.numpy(), truth.numpy()) > before + 0.02
    assert float(odds.sigmoid().sum()) == pytest.approx(float(truth.sum()), rel=0.3)


@pytest.mark.parametrize("shape", [(7, 7), (5, 4), (2, 6), (1, 1)])
def test_windows_are_unit_length_averages(shape):
    maps = torch.rand(3, DIM, *shape, generator=torch.Generator().manual_seed(0))
    windows, grid = unit_windows(maps, 3)
    pooled = F.avg_pool2d(maps, [min(3, side) for side in shape], stride=1)
    assert grid == tuple(pooled.shape[2:])
    torch.testing.assert_close(windows, F.normalize(pooled.flatten(2).transpose(1, 2), dim=-1))


@pytest.mark.parametrize(
    ("grid", "side", "rows", "columns"),
    [((5, 5), 3, [0, 2, 4], [0, 2, 4]), ((4, 1), 3, [0, 2, 3], [0]), ((7, 6), 1, list(range(7)), list(range(6)))],
)
def test_windows_that_overlap_by_half_reach_every_edge(grid, side, rows, columns):
    expected = [row * grid[1] + column for row in rows for column in columns]
    assert overlapping_by_half(grid, side).tolist() == expected

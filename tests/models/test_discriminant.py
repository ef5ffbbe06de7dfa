"""The closed-form tagger: against its formula written out, under splits and changed labels, and calibrated."""

import time
from collections.abc import Callable

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import mean_average_precision
from fewtags.models.discriminant import (
    Basis,
    Discriminant,
    DiscriminantSums,
    calibrate,
    expected_f1_thresholds,
    leave_one_out,
    unit_length,
)


def some_images(num_images=300, num_categories=4, dim=12, known=0.5, seed=0, strength=1.5):
    """Features with a direction per category, the truth, and labels of which a share is known.

    The directions depend on nothing but the sizes: another seed gives more images of the same world.
    """
    directions = torch.randn(num_categories, dim, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(num_images, num_categories, generator=generator) < 0.2
    features = strength * truth.float() @ directions + torch.randn(num_images, dim, generator=generator) + 1
    hidden = torch.rand(truth.shape, generator=generator) >= known
    return features, truth, (truth & ~hidden).to(torch.int8)


def obvious_scores(features, labels, images, penalty):
    """x' A m_c as the formula reads, one category at a time, in float64."""
    unit = features.double() / features.double().norm(dim=1, keepdim=True)
    mean, scale = unit.mean(0), unit.std(0, unbiased=False)
    x = (unit - mean) / scale
    A = torch.linalg.inv(x.T @ x / len(x) + penalty * torch.eye(x.shape[1], dtype=torch.double))
    queries = (images.double() / images.double().norm(dim=1, keepdim=True) - mean) / scale
    return torch.stack([queries @ A @ x[labels[:, c] == 1].mean(0) for c in range(labels.shape[1])], dim=1)


def fitted(features, labels, **options):
    return Discriminant.of(DiscriminantSums.of(features, labels), features, labels, **options)


def assert_same(a, b, tolerance=1e-12):
    for name, value in vars(a).items():
        torch.testing.assert_close(value, getattr(b, name), rtol=tolerance, atol=tolerance)


def test_scores_follow_the_formula():
    features, _, labels = some_images()
    model = fitted(features, labels, penalties=(0.7,))
    images, _, _ = some_images(seed=1)
    expected = obvious_scores(features, labels, images, 0.7)
    torch.testing.assert_close(model.scores(images).double(), expected, rtol=1e-4, atol=1e-4)


def test_splits_merge_to_the_same_statistics():
    features, _, labels = some_images()
    whole, left, right = (DiscriminantSums(4, 12) for _ in range(3))
    for n, rows in enumerate(torch.arange(300).chunk(5)):
        whole.add(features[rows], labels[rows])
        (left if n < 2 else right).add(features[rows], labels[rows])
    left.merge(right)
    assert_same(left, whole)


def test_a_label_added_and_removed_leaves_no_trace():
    features, _, labels = some_images()
    labels[7, 2] = UNKNOWN
    model, before = fitted(features, labels), fitted(features, labels)
    for label in (PRESENT, ABSENT, UNKNOWN):
        model.relabel(features[7], 2, label)
        assert int(model.category_count[2] - before.category_count[2]) == int(label == PRESENT)
    torch.testing.assert_close(model.category_total, before.category_total)
    torch.testing.assert_close(model.weights, before.weights, rtol=1e-4, atol=1e-5)


def test_saying_the_same_again_changes_nothing():
    """Also for an image known from the start, and for one computed again with other last digits."""
    features, _, labels = some_images()
    model, once = fitted(features, labels), fitted(features, labels)
    new, known = 7, int((labels[:, 2] == PRESENT).nonzero()[0])
    labels[new, 2] = UNKNOWN
    once.relabel(features[new], 2, PRESENT)
    for _ in range(50):
        model.relabel(features[known] * 1.0001, 2, PRESENT)
        model.relabel(features[new] + 1e-5, 2, PRESENT)
    assert torch.equal(model.category_count, once.category_count)
    torch.testing.assert_close(model.weights, once.weights, rtol=1e-3, atol=1e-3)


def test_an_image_that_was_never_seen_is_taken_in_once():
    features, _, labels = some_images()
    model = fitted(features, labels)
    count = float(model.category_count[1])
    for _ in range(3):
        model.relabel(torch.full((12,), -5.0), 1, PRESENT)
    assert float(model.category_count[1]) == count + 1


def test_relabelling_equals_fitting_anew():
    features, _, labels = some_images()
    labels[7, 2] = UNKNOWN
    model = fitted(features, labels, penalties=(1.0,))
    model.relabel(features[7], 2, PRESENT)
    labels[7, 2] = PRESENT
    anew = fitted(features, labels, penalties=(1.0,))
    torch.testing.assert_close(model.weights, anew.weights, rtol=1e-4, atol=1e-5)
    order, scores = model.rerank(2, unit_length(features))
    torch.testing.assert_close(scores, anew.scores(features)[:, 2], rtol=1e-4, atol=1e-4)
    assert (scores[order].diff() <= 0).all()


def test_leave_one_out_equals_leaving_the_image_out():
    """A left-out image gives no label but stays among the images, as it does when nobody labelled it."""
    features, _, labels = some_images()
    statistics = DiscriminantSums.of(features, labels)
    basis = Basis.of(statistics)
    scores = leave_one_out(
        basis.rotate(features),
        labels.float(),
        basis.prototypes(statistics.category_count, statistics.category_total),
        statistics.category_count.float(),
        basis.values,
        0.7,
    )
    for image, category in ((labels == PRESENT).nonzero()[:5]).tolist():
        without = labels.clone()
        without[image, category] = UNKNOWN
        expected = obvious_scores(features, without, features[image : image + 1], 0.7)[0, category]
        torch.testing.assert_close(scores[image, category].double(), expected, rtol=1e-3, atol=1e-3)
    unknown = labels == UNKNOWN
    expected = obvious_scores(features, labels, features, 0.7)
    torch.testing.assert_close(scores.double()[unknown], expected[unknown], rtol=1e-3, atol=1e-3)


def test_the_penalty_is_chosen_without_the_hidden_labels_and_near_the_best():
    features, _, labels = some_images(400, 10, 150, known=0.3, strength=0.3)
    images, answers, _ = some_images(2000, 10, 150, seed=1, strength=0.3)
    grid = (0.01, 1.0, 100.0)
    chosen = fitted(features, labels, penalties=grid)
    quality = {
        penalty: mean_ap(fitted(features, labels, penalties=(penalty,)).scores(images), answers) for penalty in grid
    }
    assert quality[float(chosen.penalty)] > max(quality.values()) - 0.02
    assert min(quality.values()) < max(quality.values()) - 0.02  # or the test would say nothing


def mean_ap(scores, truth):
    return mean_average_precision(scores.numpy(), truth.numpy())


@pytest.mark.parametrize("known", [0.2, 0.8])
def test_known_proportion_is_estimated_and_probabilities_are_calibrated(known):
    features, _, labels = some_images(6000, 8, 24, known=known, strength=0.7)
    model = fitted(features, labels)
    assert model.known_proportion[0].item() == pytest.approx(known, abs=0.06)

    images, truth, _ = some_images(3000, 8, 24, seed=1, strength=0.7)
    probabilities = model.probabilities(images)
    for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01)):
        among = (probabilities >= low) & (probabilities < high)
        assert truth[among].float().mean().item() == pytest.approx(probabilities[among].mean().item(), abs=0.1)


def test_thresholds_give_the_best_expected_f1():
    probabilities = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) ** 3
    chosen = expected_f1_thresholds(probabilities)

    def expected_f1(c, threshold):
        taken = probabilities[:, c] >= threshold
        return 2 * probabilities[taken, c].sum() / (taken.sum() + probabilities[:, c].sum())

    for c in range(3):
        best = max(expected_f1(c, threshold) for threshold in probabilities[:, c])
        torch.testing.assert_close(expected_f1(c, chosen[c]), best)


def test_with_complete_labels_calibration_is_logistic_regression():
    features, truth, _ = some_images(3000, strength=0.7)
    labels = torch.where(truth, PRESENT, ABSENT)
    slope, intercept = calibrate(features[:, :4], labels, torch.ones(4))
    for c in range(4):
        regression = LogisticRegression(C=1e6).fit(features[:, c : c + 1].numpy(), truth[:, c].numpy())
        assert slope[c].item() == pytest.approx(regression.coef_.item(), abs=0.03)
        assert intercept[c].item() == pytest.approx(regression.intercept_.item(), abs=0.05)
    assert fitted(features, labels).known_proportion[0] == 1


def test_soft_labels_find_hidden_positives_and_help():
    features, truth, labels = some_images(1500, 6, 60, known=0.1, strength=0.4)
    model = fitted(features, labels, known_proportion=0.1)
    soft = model.soft_labels(DiscriminantSums.of(features, labels), features, labels)
    assert (soft[labels == PRESENT] == 1).all()
    hidden, absent = truth & (labels == UNKNOWN), ~truth
    assert soft[hidden].mean() > 4 * soft[absent].mean()
    refined = Discriminant.of(DiscriminantSums.of(features, soft), features, labels, 0.1, weights=soft)
    images, answers, _ = some_images(3000, 6, 60, seed=1, strength=0.4)
    assert mean_ap(refined.scores(images), answers) > mean_ap(model.scores(images), answers)


def test_categories_with_one_known_positive_or_none_stay_finite():
    features, _, labels = some_images()
    labels[:, 0] = UNKNOWN
    labels[:, 1] = UNKNOWN
    labels[3, 1] = PRESENT
    model = fitted(features, labels)
    assert model.probabilities(features).isfinite().all()
    assert model.thresholds.isfinite().all()
    assert (model.scores(features)[:, 0] == 0).all()


def test_a_constant_dimension_changes_nothing():
    features, _, labels = some_images()
    unit = unit_length(features)
    padded = torch.cat([unit, torch.zeros(len(unit), 1)], dim=1)
    model, same = fitted(unit, labels, penalties=(1.0,)), fitted(padded, labels, penalties=(1.0,))
    torch.testing.assert_close(model.scores(unit), same.scores(padded), rtol=1e-4, atol=1e-4)


def test_a_saved_model_goes_on_where_it_was():
    features, _, labels = some_images()
    model = fitted(features, labels)
    again = Discriminant(4, 12)
    again.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    torch.testing.assert_close(again.probabilities(features), model.probabilities(features))
    category = 1
    image = int((labels[:, category] == UNKNOWN).nonzero()[0])
    for one in (model, again):
        one.relabel(features[image], category, PRESENT)
        one.relabel(features[image], category, PRESENT)
    assert float(again.category_count[category]) == int((labels[:, category] == PRESENT).sum()) + 1
    torch.testing.assert_close(again.scores(features), model.scores(features))


def processor_seconds(work: Callable[[int], object]) -> float:
    """The best of five."""
    seconds = []
    for number in range(5):
        start = time.process_time()
        work(number)
        seconds.append(time.process_time() - start)
    return min(seconds)


def test_a_new_label_and_a_new_ranking_cost_little_more_than_one_product_and_a_sort():
    """Of all images' features with one vector: what is there to do at least."""
    generator = torch.Generator().manual_seed(0)
    stored = unit_length(torch.rand(30_000, 640, generator=generator))
    labels = (torch.rand(700, 3, generator=generator) < 0.1).to(torch.int8)
    model = fitted(stored[:700], labels, penalties=(1.0,))

    def work(image: int) -> None:
        model.relabel(stored[image], 0, PRESENT)
        model.rerank(0, stored)

    least = processor_seconds(lambda _: torch.mv(stored, model.weights[0]).argsort(descending=True))
    assert processor_seconds(work) < 5 * least


def test_nothing_known_and_impossible_proportions_are_said():
    features, _, labels = some_images()
    with pytest.raises(DataError, match="at least one known positive"):
        fitted(features, torch.zeros_like(labels))
    with pytest.raises(UserError, match="known proportion"):
        fitted(features, labels, known_proportion=1.5)
    with pytest.raises(DataError, match="finite"):
        DiscriminantSums.of(torch.full((3, 12), torch.nan), labels[:3])

"""The closed-form tagger: against its formula written out, under splits and changed labels, and calibrated."""

import time
from collections.abc import Callable

import pytest
import torch

from fewtags.data.partial_labels import single_positive
from fewtags.errors import DataError, UserError
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.metrics import mean_average_precision
from fewtags.models import discriminant
from fewtags.models.curves import LOWEST_THRESHOLD
from fewtags.models.discriminant import PUSH, Basis, Discriminant, DiscriminantSums, unit_length
from fewtags.models.leave_one_out import LeftOut, Reliability
from made_features import some_images


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


def in_own_units(scores):
    """Scores of a category are comparable up to a positive factor."""
    return scores / scores.std(0)


def test_scores_follow_the_formula():
    features, _, labels = some_images()
    model = fitted(features, labels, penalties=(0.7,))
    images, _, _ = some_images(seed=1)
    expected = in_own_units(obvious_scores(features, labels, images, 0.7))
    torch.testing.assert_close(in_own_units(model.scores(images)).double(), expected, rtol=1e-3, atol=1e-3)


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
    torch.testing.assert_close(model.absent_total, before.absent_total, rtol=1e-4, atol=1e-5)
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


def test_a_new_positive_makes_the_scores_of_all_positives_with_a_smaller_penalty():
    features, _, labels = some_images()
    labels[7, 2] = UNKNOWN
    model = fitted(features, labels, penalties=(1.0,))
    known = int((labels[:, 2] == PRESENT).sum())
    model.relabel(features[7], 2, PRESENT)
    labels[7, 2] = PRESENT
    penalty = ((known + 1) / (known + 2)) ** 0.5
    expected = obvious_scores(features, labels, features, penalty)[:, 2:3]
    order, scores = model.rerank(2, unit_length(features))
    torch.testing.assert_close(in_own_units(scores[:, None]).double(), in_own_units(expected), rtol=1e-3, atol=1e-3)
    assert (scores[order].diff() <= 0).all()


def test_a_known_absence_moves_the_ranking_and_its_image_down():
    features, truth, labels = some_images()
    model = fitted(features, labels)
    before = model.scores(features)[:, 1]
    image = int(before.masked_fill(truth[:, 1], -torch.inf).argmax())  # the likeliest that is none
    model.relabel(features[image], 1, ABSENT)
    after = model.scores(features)[:, 1]
    assert not torch.allclose(before, after, rtol=1e-3, atol=1e-3)
    assert in_own_units(after)[image] < in_own_units(before)[image]
    model.relabel(features[image], 1, UNKNOWN)
    torch.testing.assert_close(model.scores(features)[:, 1], before, rtol=1e-4, atol=1e-4)


def test_labels_may_come_in_any_order():
    features, truth, labels = some_images()
    rows = (labels[:, 0] == UNKNOWN).nonzero()[:30, 0].tolist()
    answers = {row: PRESENT if truth[row, 0] else ABSENT for row in rows}
    forth, back, at_once = (fitted(features, labels) for _ in range(3))
    for row in rows:
        forth.relabel(features[row], 0, answers[row])
    for row in reversed(rows):
        back.relabel(features[row], 0, answers[row])
    told = torch.tensor([answers[row] for row in rows])
    at_once.relabel_many(unit_length(features[rows]), 0, torch.zeros_like(told), told)
    for other in (back, at_once):
        torch.testing.assert_close(forth.scores(features), other.scores(features), rtol=1e-4, atol=1e-4)


def test_known_absences_help_and_weigh_less_where_they_are_known_more_often():
    features, truth, labels = some_images(800, 6, 120, known=0.3, strength=0.3)
    images, answers, _ = some_images(3000, 6, 120, seed=1, strength=0.3)
    drawn = torch.rand(labels.shape, generator=torch.Generator().manual_seed(5))
    quality, push = {}, {}
    for share in (0.0, 0.3, 1.0):
        told = torch.where(~truth & (drawn < share), torch.tensor(ABSENT, dtype=labels.dtype), labels)
        model = fitted(features, told)
        quality[share], push[share] = mean_ap(model.scores(images), answers), float(model.push.mean())
    assert min(quality.values()) > quality[0.0] - 0.002
    assert max(quality[0.3], quality[1.0]) > quality[0.0]
    assert push[1.0] < push[0.3] <= PUSH


def refitted_without(x, labels, image, category, penalty):
    """z of one image by the obvious way: take it out, centre the others, invert their second moment."""
    others = torch.arange(len(x)) != image
    centre = x[others].mean(0)
    rest = x[others] - centre
    A = torch.linalg.inv(rest.T @ rest / len(x) + penalty * torch.eye(x.shape[1], dtype=x.dtype))
    positives = rest[labels[others, category] == PRESENT]
    return (x[image] - centre) @ A @ positives.mean(0)


@pytest.mark.parametrize(("number", "dim", "penalty"), [(300, 12, 0.7), (20, 40, 0.5), (20, 40, 50.0)])
def test_left_out_scores_equal_refitting_without_the_image(number, dim, penalty):
    """Out of the mean, the centre and the second moment, also with more features than images."""
    features, _, labels = some_images(number, 4, dim, known=0.9)
    labels[:3] = PRESENT  # two others of each category at least
    sums = DiscriminantSums.of(features, labels)
    basis = Basis.of(sums)
    rotated, count = basis.rotate(features), sums.category_count.float()
    prototypes = basis.prototypes(sums.category_count, sums.category_total)
    certain = Reliability(torch.ones(()), torch.zeros(()))
    left_out = LeftOut(prototypes / (basis.values + penalty), count, basis.values, penalty, number, certain)
    scores = left_out.scores(rotated, (labels == PRESENT).float()) / left_out._factor()
    x = rotated.double()
    for image in range(0, number, max(number // 10, 1)):
        for category in range(4):
            expected = refitted_without(x, labels, image, category, penalty)
            torch.testing.assert_close(scores[image, category].double(), expected, rtol=2e-2, atol=2e-2)
    image, category = (labels == PRESENT).nonzero(as_tuple=True)
    of_pairs = left_out.pairs(rotated[image], category, torch.ones(len(image)))
    torch.testing.assert_close(of_pairs / left_out._factor()[category], scores[image, category], rtol=1e-3, atol=1e-3)


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


def test_probabilities_rank_as_scores_whatever_was_known():
    """In tiny sets, with one known positive, with complete labels: no slope is negative, none is steep."""
    for number, known in ((12, 0.5), (40, 0.1), (300, 1.0)):
        features, truth, labels = some_images(number, 4, 60, known=known)
        labels[0, 0] = PRESENT
        for told in (labels, torch.where(truth, PRESENT, ABSENT).to(labels.dtype)):
            model = fitted(features, told)
            scores, chances = model.scores(features), model.probabilities(features)
            assert (chances.gather(0, scores.argsort(0, descending=True)).diff(dim=0) <= 1e-6).all()
            assert 0 < float(model.slope.min()) <= float(model.slope.max()) < 30
            assert (model.thresholds >= LOWEST_THRESHOLD).all()


def test_soft_labels_find_hidden_positives_and_help():
    features, truth, labels = some_images(1500, 6, 60, known=0.1, strength=0.4)
    sums = DiscriminantSums.of(features, labels)
    model = Discriminant(6, 60)
    told, choice = model.fit(sums, features, labels, 0.1)
    soft = model.soft_labels(told, (labels == PRESENT).float())
    assert (soft[labels == PRESENT] == 1).all()
    hidden, absent = truth & (labels == UNKNOWN), ~truth
    assert soft[hidden].mean() > 4 * soft[absent].mean()
    images, answers, _ = some_images(3000, 6, 60, seed=1, strength=0.4)
    before = mean_ap(model.scores(images), answers)
    model.refit(told, soft, sums.relabelled(features, soft), choice, 0.1)
    assert mean_ap(model.scores(images), answers) > before


def test_categories_with_one_known_positive_or_none_stay_finite():
    features, _, labels = some_images()
    labels[:, 0] = UNKNOWN
    labels[:, 1] = UNKNOWN
    labels[3, 1] = PRESENT
    model = fitted(features, labels)
    assert model.probabilities(features).isfinite().all()
    assert model.thresholds.isfinite().all()
    assert (model.scores(features)[:, 0] == 0).all()


@pytest.mark.parametrize(
    ("number", "categories"), [(1, 1), (1, 3), (2, 1), (2, 5), (5, 12), (30, 1)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("filled", [PRESENT, ABSENT, UNKNOWN])
def test_tiny_sets_and_uniform_columns_stay_finite(number, categories, filled):
    """One image, one category, more categories than images; a category known for all, absent in all, never told."""
    features, _, labels = some_images(number, categories, 12)
    labels[:, -1] = filled
    labels[0, 0] = PRESENT
    model = fitted(features, labels)
    for values in (model.scores(features), model.probabilities(features), model.thresholds, model.slope):
        assert values.isfinite().all()
    model.relabel(features[0], categories - 1, ABSENT)
    model.relabel(features[0] + 1, 0, PRESENT)
    assert model.probabilities(features).isfinite().all()


def test_a_hundred_images_do_not_collapse():
    """With more features than images and one known tag each, probabilities still rank."""
    features, truth, _ = some_images(100, 10, 400, strength=0.8)
    images, answers, _ = some_images(1000, 10, 400, seed=1, strength=0.8)
    generator = torch.Generator().manual_seed(0)
    single = (torch.rand(truth.shape, generator=generator) * truth).argmax(1)
    labels = torch.zeros(truth.shape, dtype=torch.int8)
    rows = truth.any(1).nonzero()[:, 0]
    labels[rows, single[rows]] = PRESENT
    model = fitted(features, labels)
    chance = mean_ap(torch.rand(answers.shape, generator=generator), answers)
    assert mean_ap(model.probabilities(images), answers) > chance + 0.2
    assert float(model.penalty) >= 1


def with_names(knowledge, seed=0, **options):
    """Images, and name scores that say the more of the truth the more `knowledge` is in them."""
    features, truth, labels = some_images(seed=seed, **options)
    generator = torch.Generator().manual_seed(seed + 50)
    names = knowledge * truth + torch.randn(truth.shape, generator=generator)
    return features, truth, labels, names.log_softmax(1)


def test_names_that_help_are_used_and_others_are_not():
    sizes = {"num_images": 500, "num_categories": 8, "dim": 100, "known": 0.1, "strength": 0.3}
    quality = {}
    for knowledge in (0.0, 3.0):
        features, _, labels, names = with_names(knowledge, **sizes)
        images, answers, _, of_images = with_names(knowledge, seed=1, **{**sizes, "num_images": 2000})
        model = fitted(features, labels, names=names)
        alone = fitted(features, labels)
        quality[knowledge] = mean_ap(model.scores(images, of_images), answers) - mean_ap(alone.scores(images), answers)
        assert model.probabilities(images, of_images).isfinite().all()
    assert quality[3.0] > 0.05
    assert quality[0.0] > -0.02


def test_names_alone_rank_images_without_a_single_label():
    features, truth, labels, names = with_names(3.0)
    model = fitted(features, torch.zeros_like(labels), names=names)
    assert mean_ap(model.scores(features, names), truth) > 0.6
    chances = model.probabilities(features, names)
    assert 0.02 < float(chances.mean()) < 0.6


def test_a_category_without_a_name_or_a_label_is_unlikely_everywhere():
    features, _, labels, names = with_names(3.0)
    labels[:, 2] = UNKNOWN
    named = torch.tensor([True, True, False, True])
    model = fitted(features, labels, names=names, named=named)
    assert (model.probabilities(features, names)[:, 2] < 0.2).all()


def test_the_more_positives_are_told_the_less_a_name_counts():
    features, truth, labels, names = with_names(3.0, known=0.1)
    model = fitted(features, labels, names=names)
    before = model.name_weight.clone()
    new = (truth[:, 0] & (labels[:, 0] == UNKNOWN)).nonzero()[:10, 0]
    for row in new:
        model.relabel(features[row], 0, PRESENT)
    assert model.name_weight[0] < before[0]
    _, scores = model.rerank(0, unit_length(features), names[:, 0])
    torch.testing.assert_close(scores, model.scores(features, names)[:, 0], rtol=1e-4, atol=1e-4)
    for row in new:
        model.relabel(features[row], 0, UNKNOWN)
    torch.testing.assert_close(model.name_weight, before, rtol=1e-4, atol=1e-5)


def test_a_sample_of_many_images_gives_about_the_same_curves(monkeypatch):
    features, _, labels, names = with_names(1.0, num_images=4000, num_categories=6, dim=24)
    whole = fitted(features, labels, names=names)
    for name, value in (("_CURVE_ENTRIES", 1), ("_FEWEST_ROWS", 1500), ("_MOST_ROWS", 1500)):
        monkeypatch.setattr(discriminant, name, value)
    part = fitted(features, labels, names=names)
    assert not torch.equal(part.slope, whole.slope)
    difference = part.probabilities(features, names) - whole.probabilities(features, names)
    assert difference.abs().mean() < 0.03


def test_a_model_of_before_there_were_names_predicts_and_learns_on():
    features, _, labels = some_images()
    model = fitted(features, labels)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    known, _ = (state.pop(name) for name in ("first_count", "bend"))
    assert torch.equal(known, model.category_count)
    for name in discriminant._SINCE_NAMES:
        state.pop(name, None)
    factor = torch.tensor([0.5, 2.0, 3.0, 0.1])  # its scores had other units
    state["weights"] *= factor[:, None]
    state["slope"] /= factor
    old = Discriminant(4, 12)
    old.load_state_dict(state)
    model.bend.zero_()
    torch.testing.assert_close(old.probabilities(features), model.probabilities(features), rtol=1e-3, atol=1e-3)
    old.relabel(features[0], 1, PRESENT)
    assert old.probabilities(features).isfinite().all()


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
    with pytest.raises(DataError, match="nothing to learn from"):
        fitted(features, torch.zeros_like(labels))
    with pytest.raises(UserError, match="known proportion"):
        fitted(features, labels, known_proportion=1.5)
    with pytest.raises(DataError, match="finite"):
        DiscriminantSums.of(torch.full((3, 12), torch.nan), labels[:3])


def test_where_each_image_has_one_known_tag_the_known_proportion_is_not_that_of_the_highest_scores():
    features, truth, _ = some_images(num_images=1500, num_categories=6, dim=40, strength=1.0)
    shown = truth.any(1)
    features, truth = features[shown], truth[shown]
    labels = torch.from_numpy(single_positive(truth.numpy(), 0))
    model = fitted(features, labels)
    share = float((labels == PRESENT).sum() / truth.sum())
    assert float(model.known_proportion.mean()) == pytest.approx(share, abs=0.12)
    expected, present = model.probabilities(features).sum(), truth.sum()
    assert float(expected / present) == pytest.approx(1, abs=0.25)


def test_the_spread_of_names_over_a_few_images_is_drawn_to_the_usual_one():
    features, _, labels, names = with_names(3.0, num_images=20)
    names[:, 1] = names[:, 1].mean() + 0.01 * names[:, 1]  # nothing to see in any of them
    model = fitted(features, labels, names=names)
    assert float(model.name_factor[1]) < 2 * float(model.name_factor.median())


def test_the_penalty_does_not_depend_on_names():
    features, _, labels, names = with_names(3.0, num_images=200)
    assert fitted(features, labels, names=names).penalty == fitted(features, labels).penalty

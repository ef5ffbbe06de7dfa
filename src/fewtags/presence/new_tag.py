"""A tag that nobody has given yet: ranked from examples, a word, or nothing, and learned from answers.

    archive = Archive.of(unit_features, shares)            # once; with what a classifier sees in the images
    learned = archive.learn(rows, present)                 # examples and answers so far
    learned.odds(with_classes(unit_features, shares))      # log-odds of presence, of these or other images
    learned.first(scores, open_rows)                       # what to ask next
    learned.forecast(scores, open_rows, found)             # what the next answers find, what is missing, is it enough

Scores are f = b + w'x, plus what the name says: a logistic regression on the answers. A priori w varies in the
directions in which the images do, as in `ridge`, and as much with the classes that a classifier sees in them
(`rows`), where the backbone has one. Some images of the archive count as absences, since most tags apply to few
images. Answers about the likeliest images say nothing of the unlikely ones, so scores become log-odds by a curve of
their own, bent(A + B f), fitted to what the regression says of every answered image without its answer and to a prior
of how many images have a tag. On VOC 2007 and COCO it keeps what it promises (results/new-tag).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.presence.estimates import Interval
from fewtags.presence.observation import bent
from fewtags.presence.ridge import TILT, Basis, ImageSums
from fewtags.presence.rows import ClassShares, FeatureRows, with_classes

SPREAD = 8.0  # prior variance of an image's score, in squared log-odds; 4 to 20 rank alike
BY_CLASSES = 0.5  # the part of it that goes with the classes seen in the image; 0.3 to 0.7 rank alike
FADES = 200  # answers after which half of that part is left: with many the features alone say more
BIAS, BIAS_SPREAD = -3.0, 3.0
BACKGROUND = 300  # images that stand for the archive,
ABSENCES = 5.0  # and how many absences they count together, at least;
ABSENCES_PER_ANSWER = 0.2  # more as more is answered
# What an answered absence counts at least, and more as they are more of the answers. It was asked about because it
# looked likely: where few are like it, that says little of the others; where most are, the tag is something else.
REFUSED = 0.5
SELF_TAUGHT = 0.5  # part of their chance that they count as presences
CURIOSITY = 0.7  # standard deviations of the score that count for an image in the order: likely, or not known well;
MORE_CURIOUS = 1.5  # times so many more if all answers were no
NOISE = 4.0  # variance of what an answer says of a score: 1 / (p (1 - p)) of one as likely as not
POOL = 60  # the likeliest ones that are ordered so
MOST = 400  # yes and no answers each that are learned from; of more, a random part stands for all
NAME_SLOPE = 1.0  # log-odds per standard deviation of a name's score
PROMISE = 0.9  # precision of the tag's own threshold
LEAST = 5  # tags given above a threshold: fewer are no evidence of a precision
TAIL = 100  # answers next to what was not asked about: they tell best how many are missing there
NEXT = 50  # answers that a forecast is about
MAY_MISS = 0.1  # enough is when at most this part is missing, with a probability of 0.95
# Priors of the curve: the logarithm of B, and the log-odds of the share of images that have a tag (mean, deviation).
LOG_SLOPE, SHARE = (0.9, 0.5), (-3.5, 1.0)
_A = torch.arange(-9.0, 4.01, 0.25)
_B = torch.arange(-0.6, 2.01, 0.2).exp()
_FITTED_TO = 8192  # images: the basis of the features
_QUANTILES = 200  # of the archive's scores
_NUMBERS = 400  # between which an interval is read
_KEPT = 4096  # rows
_STEPS, _CLOSE = 25, 1e-2


@dataclass(frozen=True)
class Curve:
    """From scores to log-odds, bent(A + B f): the most probable one, and how probable each of a grid is."""

    a: float
    b: float
    grid: Tensor  # [G, 2]
    weight: Tensor  # [G]

    @classmethod
    def of(cls, left_out: Tensor, present: Tensor, archive: Tensor) -> Curve:
        """From left-out scores [n] of answers `present` [n], and scores of the `archive` [M]."""
        a, b = (part.reshape(-1, 1) for part in torch.meshgrid(_A, _B, indexing="ij"))
        eta = bent(a + b * left_out)
        likelihood = (present.float() * eta - F.softplus(eta)).sum(1)
        share = bent(a + b * archive).sigmoid().mean(1).logit(eps=1e-6)
        off = (b[:, 0].log() - LOG_SLOPE[0]) / LOG_SLOPE[1], (share - SHARE[0]) / SHARE[1]
        posterior = likelihood - (off[0].square() + off[1].square()) / 2
        best = int(posterior.argmax())
        weight = (posterior - posterior.max()).exp()
        return cls(float(a[best]), float(b[best]), torch.cat([a, b], dim=1), weight / weight.sum())

    def __call__(self, scores: Tensor) -> Tensor:
        return bent(self.a + self.b * scores)

    def expected(self, scores: Tensor) -> Interval:
        """How many of the images with these scores are present, with a 95 % interval: the curve is not known well, and
        chances are no certainties."""
        if not len(scores):
            return Interval(0.0, 0.0, 0.0)
        some = self.weight > 1e-4
        grid, weight = self.grid[some], self.weight[some] / self.weight[some].sum()
        chance = bent(grid[:, :1] + grid[:, 1:] * _quantiles(scores)).sigmoid()
        mean = len(scores) * chance.mean(1)
        deviation = (len(scores) * (chance * (1 - chance)).mean(1)).sqrt()
        numbers = torch.linspace(0, 1, _NUMBERS).square() * float((mean + 3 * deviation).max())
        below = (weight * torch.special.ndtr((numbers[:, None] - mean) / deviation.clamp(min=1e-6))).sum(1)
        low, high = (float(numbers[min(int((below < q).sum()), _NUMBERS - 1)]) for q in (0.025, 0.975))
        value = float(weight @ mean)
        return Interval(value, min(low, value), max(high, value))


@dataclass(frozen=True)
class Threshold:
    """The lowest probability at which the tag is given, and the precision that it promises there."""

    probability: float  # above 1: nowhere can the precision be promised
    promised: float


@dataclass(frozen=True)
class Forecast:
    """Is a tag reviewed enough?"""

    next_found: float  # of the next NEXT answers, the likeliest first, so many are expected to be yes
    missing: Interval
    found: int  # known to be present
    threshold: Threshold | None = None

    @property
    def enough(self) -> bool:
        """Is at most a tenth missing, with a probability of 0.95? (Said seldom; how often it was right is in
        results/new-tag.)"""
        return self.found > 0 and self.missing.high <= MAY_MISS * (self.found + self.missing.high)


@dataclass(frozen=True)
class Learned:
    archive: Archive
    weights: Tensor  # [D] of unit-length features, or [D + K] of those with classes
    bias: float
    rows: np.ndarray  # [n] images that it was learned from, the examples too
    answered: np.ndarray  # [m] images that were answered,
    present: np.ndarray  # [m] bool: how,
    left_out: Tensor  # [m] and their scores, each without its own answer
    curve: Curve
    tail: Curve  # by the unlikeliest answered ones, for those that were not asked about

    def scores(self, images: FeatureRows, prior: Tensor | None = None) -> Tensor:
        """[N] of features like those of the archive; `prior` is what the name says of the images."""
        scores = images @ self.weights + self.bias
        return scores if prior is None else scores + prior

    def odds(self, images: FeatureRows, prior: Tensor | None = None) -> Tensor:
        return self.curve(self.scores(images, prior))

    def first(self, scores: Tensor, open_rows: np.ndarray) -> np.ndarray:
        """The open rows in the order to ask about them: the likeliest, and among them first those of which little is
        known, given the answers and those asked before them.

        Where the next ones are as surely right as the threshold promises, answers about them teach little. So every
        tenth question is about the least certain one instead."""
        order = open_rows[np.argsort(-scores.numpy()[open_rows], kind="stable")]
        if not len(self.rows):
            return order
        pool = order[:POOL]
        curiosity = CURIOSITY * (1 + MORE_CURIOUS * float((~self.present).sum()) / len(self.rows))
        places = _hopeful(scores[torch.from_numpy(pool)], self.archive.covariance(pool, self.rows), curiosity)
        asked = np.concatenate([pool[places], order[POOL:]])
        odds = self.curve(scores[torch.from_numpy(asked)])
        if float(odds[:NEXT].sigmoid().mean()) < PROMISE:
            return asked
        every = round(1 / (1 - PROMISE))
        doubtful = (-odds.abs()).topk(min(NEXT, len(asked))).indices.numpy()
        # Counted by what is left, so that it is every tenth too if one is asked at a time.
        due = len(asked) % every + (every - 1) * np.arange(len(doubtful)) - 0.5
        place = np.arange(len(asked), dtype=np.float64)
        place[doubtful] = np.minimum(place[doubtful], due)
        return asked[place.argsort(kind="stable")]

    def threshold(self, scores: Tensor, precision: float = PROMISE) -> Threshold:
        """Where the expected precision over the archive is at least `precision`: answered images count as they were
        answered, at the score without their answer, the others by their probability."""
        at, expected = scores.clone(), self.curve(scores).sigmoid()
        rows = torch.from_numpy(self.answered)
        at[rows], expected[rows] = self.left_out, torch.from_numpy(self.present).float()
        order = at.argsort(descending=True)
        so_far = expected[order].cumsum(0) / torch.arange(1, len(order) + 1)
        enough = (so_far >= precision).nonzero()[:, 0]
        enough = enough[enough >= LEAST - 1]
        if not len(enough):
            return Threshold(1.01, precision)
        last = int(enough[-1])
        return Threshold(float(self.curve(at[order[last]]).sigmoid()), float(so_far[last]))

    def forecast(self, scores: Tensor, open_rows: np.ndarray, found: int) -> Forecast:
        """Where `found` are known to have the tag, and `open_rows` are left."""
        left = scores[torch.from_numpy(open_rows)]
        best = left.topk(min(NEXT, len(left))).values
        next_found = float(self.curve(best).sigmoid().sum())
        return Forecast(next_found, self.tail.expected(left), found, self.threshold(scores))


@dataclass(frozen=True)
class View:
    """Images such that dot products are prior covariances of their scores."""

    mean: Tensor  # [D]
    root: Tensor  # [D, D]
    of_classes: float  # scale of the roots of class shares; 0 where there are none

    @classmethod
    def of(cls, sample: Tensor, *, of_classes: bool) -> View:
        """By some images [M, D]."""
        basis = Basis.of(ImageSums.of(sample, torch.zeros(len(sample), 1)))
        by_classes = BY_CLASSES * of_classes
        varies = basis.values > 1e-4
        variance = torch.where(varies, basis.values.clamp(min=1e-4).pow(TILT), 0.0)
        variance = variance * ((1 - by_classes) * SPREAD / (variance * basis.values).sum().clamp(min=1e-9))
        root = basis.vectors * variance.sqrt() / basis.scale[:, None]
        return cls(basis.mean, root, (by_classes * SPREAD) ** 0.5)

    def __call__(self, images: Tensor) -> Tensor:
        size = len(self.mean)
        own = (images[:, :size] - self.mean) @ self.root
        return torch.cat([own, self.of_classes * images[:, size:]], dim=1)

    def back(self, direction: Tensor) -> tuple[Tensor, float]:
        """Weights of the features themselves, and what they add to the bias."""
        size = len(self.mean)
        own = self.root @ direction[:size]
        return torch.cat([own, self.of_classes * direction[size:]]), -float(self.mean @ own)


@dataclass(frozen=True)
class Archive:
    """What all new tags of the same images share."""

    features: FeatureRows  # [N, D] of unit length, or [N, D + K] with the classes seen in the images
    some: FeatureRows  # evenly spaced ones: enough for quantiles of scores
    every: int  # how far apart they are
    view: View
    background: Tensor  # [W] rows
    of_background: Tensor  # [W, D']
    between: Tensor  # [W, W] prior covariances by the features,
    by_classes: Tensor  # [W, W] and by the classes
    seen: dict[int, Tensor] = field(default_factory=dict, repr=False)  # row -> [D']; see `look`

    @classmethod
    def of(
        cls, unit_features: FeatureRows, shares: ClassShares | None = None, readable: np.ndarray | None = None
    ) -> Archive:
        rows = torch.arange(len(unit_features)) if readable is None else torch.from_numpy(np.flatnonzero(readable))
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        view = View.of(unit_features[rows[order[:_FITTED_TO]]], of_classes=shares is not None)
        features, every = with_classes(unit_features, shares), max(len(unit_features) // _FITTED_TO, 1)
        some = with_classes(unit_features[::every], None if shares is None else shares[::every])
        background = rows[order[:BACKGROUND]]
        images, size = view(features[background]), len(view.mean)
        own, classes = images[:, :size], images[:, size:]
        return cls(features, some, every, view, background, images, own @ own.T, classes @ classes.T)

    def look(self, rows: np.ndarray) -> Tensor:
        """[M, D'] images in the view. Those seen lately are kept: the same ones are asked for again."""
        if len(self.seen) + len(rows) > _KEPT:
            self.seen.clear()
        new = np.array([row for row in rows.tolist() if row not in self.seen], dtype=np.int64)
        if len(new):
            self.seen.update(zip(new.tolist(), self.view(self.features[torch.from_numpy(new)]), strict=True))
        if not len(rows):
            return self.of_background[:0]
        return torch.stack([self.seen[row] for row in rows.tolist()])

    def covariance(self, rows: np.ndarray, known: np.ndarray) -> Tensor:
        """[M, M] of the scores of `rows`, given answers about `known` ones, whatever they were."""
        some = known if len(known) <= 2 * MOST else np.random.default_rng(0).choice(known, 2 * MOST, replace=False)
        images, answered = self.look(rows), self.look(some)
        between = answered @ answered.T
        between.diagonal().add_(NOISE)
        across = images @ answered.T
        return images @ images.T - across @ torch.linalg.solve(between, across.T)

    def learn(
        self,
        rows: np.ndarray,
        present: np.ndarray,
        prior: Tensor | None = None,
        examples: Collection[int] = (),
    ) -> Learned:
        """From answers `present` [n] about images `rows` [n], and the examples among them. These were chosen because
        they have the tag, so they say how it looks but not how often it is present at their score.

        `prior` [N] is what the name says of every image, in log-odds.
        """
        rows, present = np.asarray(rows, dtype=np.int64), np.asarray(present, dtype=bool)
        rows, present, weight = _at_most(rows, present)
        regression = _Regression.of(self, rows, present, weight, prior)
        weights, shift = self.view.back(regression.direction)
        bias = regression.bias + shift
        sample = self.some @ weights + bias
        if prior is not None:
            sample = sample + prior[:: self.every]
        asked = ~np.isin(rows, list(examples))
        left_out, said = regression.left_out[torch.from_numpy(asked)], present[asked]
        answers, quantiles = torch.from_numpy(said), _quantiles(sample)
        curve = Curve.of(left_out, answers, quantiles)
        low = left_out.argsort()[:TAIL]
        tail = curve if len(low) == len(answers) else Curve.of(left_out[low], answers[low], quantiles)
        return Learned(self, weights, bias, rows, rows[asked], said, left_out, curve, tail)


@dataclass(frozen=True)
class _Regression:
    direction: Tensor  # [D'] of the images as `Archive.look` shows them
    bias: float
    left_out: Tensor  # [n]

    @classmethod
    def of(
        cls, archive: Archive, rows: np.ndarray, present: np.ndarray, weight: Tensor, prior: Tensor | None
    ) -> _Regression:
        """Newton's method on the scores f of answered and background images: with prior covariance K, f = m + K a, and
        at the maximum a is the gradient of the log likelihood."""
        number, rest = len(rows), len(archive.background)
        answered = archive.look(rows)
        faded = FADES / (FADES + number)
        images = torch.cat([answered, archive.of_background])
        images[:, len(archive.view.mean) :] *= faded**0.5
        answered = images[:number]
        covariance = torch.empty(number + rest, number + rest)
        covariance[number:, number:] = archive.between + faded * archive.by_classes
        covariance[:number] = answered @ images.T
        covariance[number:, :number] = covariance[:number, number:].T
        covariance += BIAS_SPREAD**2
        at = torch.from_numpy(rows)
        target = torch.cat([torch.from_numpy(present).float(), torch.zeros(rest)])
        undecided = ~torch.isin(archive.background, at)
        absences = max(ABSENCES, ABSENCES_PER_ANSWER * float(weight.sum()))
        refused = torch.where(target[:number] > 0, 0.0, weight)
        part = refused.sum() / weight.sum().clamp(min=1.0)
        counts = weight - refused * (1 - REFUSED) * (1 - part)
        weight = torch.cat([counts, undecided * (absences / rest)])
        mean = torch.full((number + rest,), BIAS)
        if prior is not None:
            mean = mean + prior[torch.cat([at, archive.background])]
        scores, gradient = mean.clone(), torch.zeros(number + rest)
        for step in range(_STEPS):
            chance = scores.sigmoid()
            if step:
                target[number:] = SELF_TAUGHT * chance[number:]
            information = (weight * chance * (1 - chance)).clamp(min=1e-7)
            root = information.sqrt()
            matrix = root[:, None] * covariance * root
            matrix.diagonal().add_(1.0)
            factor = torch.linalg.cholesky(matrix)
            wanted = scores - mean + weight * (target - chance) / information
            newton = root * torch.cholesky_solve((root * wanted)[:, None], factor)[:, 0]
            change = mean + covariance @ newton - scores
            longest = float(change.abs().max())
            length = min(1.0, 5 / max(longest, 1e-9))  # a Newton step may be too long far from the maximum
            scores, gradient = scores + length * change, gradient + length * (newton - gradient)
            if longest < _CLOSE:
                break
        # Without its own answer: the cavity of the normal approximation to the posterior.
        explained = torch.linalg.solve_triangular(factor, root[:, None] * covariance[:, :number], upper=False)
        variance = (covariance.diagonal()[:number] - explained.square().sum(0)).clamp(min=1e-6)
        variance = 1 / (1 / variance - information[:number]).clamp(min=1e-3)
        left_out = scores[:number] - variance * gradient[:number]
        direction = images.T @ gradient
        direction[len(archive.view.mean) :] *= faded**0.5
        return cls(direction, BIAS + BIAS_SPREAD**2 * float(gradient.sum()), left_out)


def _hopeful(scores: Tensor, covariance: Tensor, curiosity: float = CURIOSITY) -> list[int]:
    """Places of the images in the order to ask: by score and curiosity, each as if those before it were answered, so
    that look-alikes are not asked about one after the other."""
    hope, order = scores.clone(), []
    for _ in range(len(scores)):
        deviation = covariance.diagonal().clamp(min=0).sqrt()
        best = int((hope + curiosity * deviation).argmax())
        order.append(best)
        hope[best] = -torch.inf
        shared = covariance[:, best]
        covariance = covariance - torch.outer(shared, shared) / (shared[best] + NOISE)
    return order


def name_prior(scores: Tensor, of_archive: Tensor | None = None) -> Tensor:
    """[N] log-odds by the name scores of a tag [N] (`models.names`), relative to the archive's, which they may be."""
    usual = scores if of_archive is None else of_archive
    return NAME_SLOPE * (scores - usual.mean()) / usual.std(correction=0).clamp(min=1e-6)


def _at_most(rows: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """At most MOST answers of each kind, and how many each stands for."""
    kept, weights = [], []
    for kind in (present, ~present):
        some = np.flatnonzero(kind)
        taken = np.sort(np.random.default_rng(0).permutation(some)[:MOST])
        kept.append(taken)
        weights.append(torch.full((len(taken),), len(some) / max(len(taken), 1)))
    chosen = np.concatenate(kept)
    return rows[chosen], present[chosen], torch.cat(weights)


def _quantiles(scores: Tensor) -> Tensor:
    """At most _QUANTILES of them, each standing for as many."""
    if len(scores) <= _QUANTILES:
        return scores
    places = (torch.arange(_QUANTILES) + 0.5) * (len(scores) / _QUANTILES)
    return scores.sort().values[places.long()]

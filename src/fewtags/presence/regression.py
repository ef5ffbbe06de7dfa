"""From evidence to log-odds of presence: one logistic regression per category, on labels of which only some are known.

    o = bent(b_c + a_c . evidence)                            log-odds of presence
    P(known | present) = sigmoid(habit_c + clarity * o)       see `observation`

A category's numbers theta_c = (b_c, a_c, habit_c) are drawn from a normal distribution about what all categories share,
which is fitted with them; a category of which nothing is known gets that prior mean. Labels do not determine well how
much habits differ and how much clarity matters. Both therefore have a few values, each weighted by how well it explains
the labels, and the weighted mean is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from fewtags.labels import ABSENT, PRESENT
from fewtags.presence.observation import bent, derivatives, log_likelihood, rise

# Log-odds per standard deviation of an evidence, what is usual and its standard deviation; VOC 2007 and COCO have 2 to
# 3.3 for the whole image, and 0.4 to 1.4 for names beside it.
USUAL_SLOPE, SLOPE_SPREAD = 2.0, 0.5
USUAL_NAME_SLOPE = 0.75
OWN_NAME_SLOPE = 0.8
OWN_SLOPE, OWN_INTERCEPT = 0.4, 2.0  # standard deviations of a category's slope and intercept about the shared ones
FIRST_INTERCEPT, INTERCEPT_SPREAD = -4.0, 10.0  # of the shared one: nearly free
# Tags per image, in roots of the number of categories: 0.33 on VOC 2007 and on COCO, 0.21 on NUS-WIDE, 0.76 on VG-200,
# 0.56 in our generated pictures. So much is known of the known proportion before any label is seen.
TAGS_OF_ONE_CATEGORY = 0.4
HABIT_SPREAD = 0.4  # standard deviation of the shared habit about that
HABIT_SPREADS = (0.1, 0.4, 1.0)  # by which tags' habits may differ: a coin has 0, Beta(1.5, 3) about 1
CLARITIES = (0.0, 0.1, 0.2)
CREDENCE = 0.15  # how much a log likelihood counts in the choice between these: no curve is quite of this form
SHARED_BY = 64  # categories: enough to tell what all share
# The first unknown labels stand alone; from there on bins reach over a quarter of the ranks above.
SINGLE_RANKS, GROWTH = 16, 1.25
OF_A_BIN = 3  # labels that stand for the others of their bin
MOST_POSITIVES = 100  # of a category; more stand for the rest
_STEPS, _CLOSE = 40, 1e-5


@dataclass(frozen=True)
class Cases:
    """Labels with their evidence: [R, C, J] evidence, and [R, C, 4] how many are in which state (`likelihood`)."""

    evidence: Tensor
    counts: Tensor

    @classmethod
    def of(cls, positives: Tensor, number: Tensor, evidence: Tensor, labels: Tensor, count: float = 1.0) -> Cases:
        """`positives` [P, C, J] are the evidence of known positives, each of which stands for `number` [P, C];
        `evidence` [R, C, J] and `labels` [R, C] are of the images, each of which stands for `count`.

        Of the others, a few of each bin of ranks stand for all of them. Means would not do: what two kinds of
        evidence say against each other would vary among the positives only.
        """
        known = labels == PRESENT
        score = evidence.sum(-1).masked_fill(known, -torch.inf)
        order = score.T.contiguous().argsort(dim=1, descending=True).T  # side by side they are sorted faster
        places, bins = rank_places(len(labels))
        inside = torch.zeros(int(bins[-1]) + 1 if len(bins) else 0, labels.shape[1])  # of each bin, the labels in it
        inside.index_add_(0, rank_bins(len(labels)), (~known).gather(0, order).float())
        chosen = order[places]
        states = labels.gather(0, chosen)
        taken = torch.zeros_like(inside).index_add_(0, bins, (states != PRESENT).float())
        each = count * (inside / taken.clamp(min=1))[bins] * (states != PRESENT)
        nothing = torch.zeros_like(each)
        others = torch.stack([nothing, each * (states != ABSENT), nothing, each * (states == ABSENT)], dim=-1)
        of_positives = torch.stack([number, *[torch.zeros_like(number)] * 3], dim=-1)
        of_others = evidence.gather(0, chosen[..., None].expand(*chosen.shape, evidence.shape[-1]))
        return cls(torch.cat([positives, of_others]).double(), torch.cat([of_positives, others]).double())

    def take(self, categories: Tensor | slice) -> Cases:
        return Cases(self.evidence[:, categories], self.counts[:, categories])


def rank_edges(number: int) -> Tensor:
    """Ranks at which bins begin, and the last one's end."""
    edges = list(range(min(SINGLE_RANKS, number) + 1))
    while edges[-1] < number:
        edges.append(min(max(int(edges[-1] * GROWTH), edges[-1] + 1), number))
    return torch.tensor(edges)


def rank_bins(number: int) -> Tensor:
    """[N] the bin of every rank."""
    return torch.bucketize(torch.arange(number), rank_edges(number), right=True) - 1


def rank_places(number: int) -> tuple[Tensor, Tensor]:
    """Ranks that stand for those of their bin, evenly spaced, and the bin of each."""
    edges = rank_edges(number)
    size = edges[1:] - edges[:-1]
    steps = (torch.arange(OF_A_BIN) + 0.5) / OF_A_BIN
    places = (edges[:-1, None] + (size[:, None] * steps).long()).flatten().unique()
    return places, torch.bucketize(places, edges, right=True) - 1


@dataclass(frozen=True)
class Prior:
    """What is known before the labels: means [J + 2] of the shared (b, a, habit), and their standard deviations."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, slopes: list[float], known_tags: float, num_categories: int) -> Prior:
        """`known_tags` are those of an image on average."""
        share = min(max(known_tags / (TAGS_OF_ONE_CATEGORY * math.sqrt(num_categories)), 1e-3), 0.9)
        mean = [FIRST_INTERCEPT, *slopes, math.log(share / (1 - share))]
        spread = [INTERCEPT_SPREAD, *[SLOPE_SPREAD] * len(slopes), HABIT_SPREAD]
        return cls(torch.tensor(mean, dtype=torch.float64), torch.tensor(spread, dtype=torch.float64))

    def with_habit(self, habit: Tensor) -> Prior:
        """With a habit that is known."""
        mean, spread = self.mean.clone(), self.spread.clone()
        mean[-1], spread[-1] = habit, 1e-3
        return Prior(mean, spread)


@dataclass(frozen=True)
class Shared:
    """What all categories share."""

    mean: Tensor  # [J + 2] of (b, a, habit)
    habit_spread: float
    clarity: float


Ways = Sequence[tuple[float, float]]  # in which tags may come to be known: spread of habits, clarity
WAYS: Ways = tuple(product(HABIT_SPREADS, CLARITIES))
A_COIN: Ways = ((HABIT_SPREADS[0], 0.0),)


def share_of(cases: Cases, prior: Prior, known_proportion: float | None = None) -> Shared:
    """In whatever way tags come to be known; by a coin, where the known proportion is given."""
    if known_proportion is None:
        return share_over(cases, prior, WAYS)
    return share_over(cases, prior.with_habit(torch.tensor(known_proportion).logit(eps=1e-4)), A_COIN)


def share_over(cases: Cases, prior: Prior, ways: Ways) -> Shared:
    """The posterior mean over the `ways` in which tags may come to be known."""
    known = (cases.counts[..., 0].sum(0) > 0).nonzero()[:, 0]
    if not len(known):
        return Shared(prior.mean, *A_COIN[0])
    few = cases.take(known[:: math.ceil(len(known) / SHARED_BY)])
    spread, clarity = torch.tensor(ways, dtype=torch.float64).unbind(1)
    fit = _Newton(few, prior, spread, clarity)
    fit.run()
    chance = (CREDENCE * fit.evidence()).softmax(0)
    mean = (chance[:, None] * fit.shared).sum(0)
    return Shared(mean, float((chance * spread.log()).sum().exp()), float((chance * clarity).sum()))


def share_of_others(cases: Cases, shared: Shared) -> Shared:
    """For categories that had no part in what is shared, since at most one label of each is known: they are rarer. With
    their intercept as many labels are expected to be known as are, and half a label more, or none could be present."""
    number = cases.counts.sum(-1)
    wanted = float(cases.counts[..., 0].sum()) + 0.5
    evidence = cases.evidence @ shared.mean[1:-1]  # [R, C]
    low, high = -30.0, float(shared.mean[0])
    for _ in range(40):
        middle = (low + high) / 2
        odds = bent(middle + evidence)
        known = odds.sigmoid() * (shared.mean[-1] + shared.clarity * odds).sigmoid()
        low, high = (middle, high) if float((number * known).sum()) < wanted else (low, middle)
    return replace(shared, mean=torch.cat([shared.mean.new_tensor([high]), shared.mean[1:]]))


def fit_categories(cases: Cases, shared: Shared) -> Tensor:
    """[C, J + 2] (b, a, habit) of every category, given what all share."""
    one = torch.ones(1, dtype=torch.float64)
    fit = _Newton(cases, Prior(shared.mean, shared.mean * 0), shared.habit_spread * one, shared.clarity * one)
    fit.run()
    return fit.theta[0]


class _Newton:
    """Fisher scoring for G pairs of habits' spread and clarity at once: theta [G, C, K], and shared [G, K] where the
    prior leaves them free."""

    def __init__(self, cases: Cases, prior: Prior, habit_spread: Tensor, clarity: Tensor):
        evidence, self.counts = cases.evidence, cases.counts
        ones = torch.ones(*evidence.shape[:2], 1, dtype=torch.float64)
        self.inputs = torch.cat([ones, evidence], dim=-1)  # [R, C, J + 1]
        self.clarity, self.prior = clarity[:, None, None], prior
        self.is_free = bool((prior.spread > 0).all())
        number, size = len(clarity), len(prior.mean)
        own = [OWN_INTERCEPT, OWN_SLOPE, *[OWN_NAME_SLOPE] * (size - 3), 1.0]
        spreads = torch.tensor(own, dtype=torch.float64).repeat(number, 1)
        spreads[:, -1] = habit_spread
        self.precision = spreads.pow(-2)  # [G, K] of a category about the shared
        self.shared = prior.mean.repeat(number, 1)
        self.theta = self.shared[:, None].repeat(1, evidence.shape[1], 1)

    def run(self) -> None:
        value = self.value(self.theta, self.shared)
        for _ in range(_STEPS):
            step, shared_step = self.direction()
            size = torch.ones(len(step), dtype=torch.float64)
            for _ in range(10):
                theta, shared = self.theta + size[:, None, None] * step, self.shared + size[:, None] * shared_step
                moved = self.value(theta, shared)
                worse = moved < value - 1e-9
                if not worse.any():
                    break
                size = torch.where(worse, size / 2, size)
            self.theta = torch.where(worse[:, None, None], self.theta, theta)
            self.shared = torch.where(worse[:, None], self.shared, shared)
            gained = (moved - value)[~worse]
            value = torch.where(worse, value, moved)
            if not len(gained) or float(gained.max()) < _CLOSE:
                break

    def _odds(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[G, R, C]: before `bent`, log-odds of presence, and those of being known."""
        eta = torch.einsum("rcj,gcj->grc", self.inputs, theta[..., :-1])
        odds = bent(eta)
        return eta, odds, theta[:, None, :, -1] + self.clarity * odds

    def value(self, theta: Tensor, shared: Tensor) -> Tensor:
        """[G] log likelihood plus the logarithms of the priors."""
        own = (self.precision[:, None] * (theta - shared[:, None]).square()).sum((1, 2))
        value = log_likelihood(*self._odds(theta)[1:], self.counts).sum((1, 2)) - own / 2
        if not self.is_free:
            return value
        return value - ((shared - self.prior.mean) / self.prior.spread).square().sum(1) / 2

    def _derivatives(self) -> tuple[Tensor, Tensor]:
        """Gradient [G, C, K] and expected information [G, C, K, K] of the log likelihood by theta."""
        eta, odds, known = self._odds(self.theta)
        log, slope = derivatives(odds, known, self.counts), rise(eta)
        by_eta = (log.by_odds + self.clarity * log.by_known) * slope
        info = (log.info + 2 * self.clarity * log.info_both + self.clarity.square() * log.info_known) * slope.square()
        crossed = (log.info_both + self.clarity * log.info_known) * slope
        gradient = torch.cat(
            [torch.einsum("grc,rcj->gcj", by_eta, self.inputs), log.by_known.sum(1)[..., None]], dim=-1
        )
        blocks = torch.zeros(*self.theta.shape, self.theta.shape[-1], dtype=torch.float64)
        blocks[..., :-1, :-1] = torch.einsum("grc,rcj,rck->gcjk", info, self.inputs, self.inputs)
        blocks[..., :-1, -1] = blocks[..., -1, :-1] = torch.einsum("grc,rcj->gcj", crossed, self.inputs)
        blocks[..., -1, -1] = log.info_known.sum(1)
        return gradient, blocks

    def direction(self) -> tuple[Tensor, Tensor]:
        """The next step of theta and of shared. Categories interact through the shared numbers only, so with the
        blocks H of the categories (prior included) and L the diagonal of their precisions, the shared step solves
        (sum L - L H^-1 L + L0) d = g0 + sum L H^-1 g."""
        gradient, blocks = self._derivatives()
        off = self.precision[:, None] * (self.theta - self.shared[:, None])
        self._inverse = torch.linalg.inv(blocks + torch.diag_embed(self.precision)[:, None])
        own = torch.einsum("gcij,gcj->gci", self._inverse, gradient - off)
        if not self.is_free:
            return own, torch.zeros_like(self.shared)
        pull = off.sum(1) - (self.shared - self.prior.mean) / self.prior.spread.square()
        shared = torch.linalg.solve(self._shared_block(), pull + (self.precision[:, None] * own).sum(1))
        return own + torch.einsum("gcij,gj->gci", self._inverse, self.precision * shared), shared

    def _shared_block(self) -> Tensor:
        precision = torch.diag_embed(self.precision)
        inside = torch.einsum("gi,gcij,gj->gij", self.precision, self._inverse, self.precision)
        return self.theta.shape[1] * precision + torch.diag(self.prior.spread.pow(-2)) - inside

    def evidence(self) -> Tensor:
        """[G] log likelihood with theta and shared integrated out (Laplace)."""
        self.direction()
        own = torch.linalg.slogdet(self._inverse)[1].sum(1) + self.theta.shape[1] * self.precision.log().sum(1)
        shared = -torch.linalg.slogdet(self._shared_block())[1]
        return self.value(self.theta, self.shared) + (own + shared) / 2

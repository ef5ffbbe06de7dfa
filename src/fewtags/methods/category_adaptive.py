"""The paper's method: category-adaptive label discovery (CALD), noise rejection (CANR), threshold updating (CATU).

An image whose feature for a category resembles the category's recent known positives probably shows it, even if it is
not labelled. CALD trains such labels as present, CANR excludes them, and CATU sets how similar is enough. Where the
paper is ambiguous, there is a setting, and `docs/paper-notes.md` gives the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from fewtags.contract import Batch, Outputs, Problem, Progress, StepResult
from fewtags.distributed import sum_across_ranks
from fewtags.labels import PRESENT, UNKNOWN
from fewtags.methods.base import Objective
from fewtags.methods.cross_image import cross_image_loss, of_all_processes, sampled_cross_image_loss
from fewtags.methods.feature_queue import FeatureQueue, Fill
from fewtags.methods.losses import assume_negative_loss
from fewtags.settings import Settings


def theta_schedule(
    epoch: int, start: float = 0.95, step: float = 0.025, floor: float = 0.6, first: int = 5, before: float = 1.0
) -> float:
    """theta: `before` until epoch `first` (0-based), then `start`, decreasing by `step` each epoch down to `floor`."""
    return before if epoch < first else max(floor, start - step * (epoch - first))


def reject_probability(similarity: Tensor, theta_pos: Tensor, theta_neg: Tensor) -> Tensor:
    """delta of Eq. 9: 0 up to theta_neg, 1 from theta_pos, linear in between; a step if the two are equal."""
    gap = theta_pos - theta_neg
    ramp = (similarity - theta_neg) / gap.clamp(min=1e-6)
    return torch.where(gap > 1e-6, ramp.clamp(0, 1), (similarity >= theta_pos).to(ramp))


def shrinkage_of(config: CategoryAdaptive.Config, problem: Problem, feature_dim: int) -> float:
    """Shrinkage of the whitening: grows with the number of directions per known positive."""
    if config.shrinkage is not None:
        return config.shrinkage
    return 0.15 * feature_dim / max(float(problem.known_positives.float().median()), 1.0)


class CategoryAdaptive(Objective["CategoryAdaptive.Config"]):
    """AN on the observed labels, plus CALD, CANR and the cross-image loss, each of which can be disabled."""

    class Config(Settings):
        discover: bool = True
        """CALD: also train on the observed labels plus those similar to known positives."""
        reject: bool = True
        """CANR: also train without the assumed negatives that are similar to known positives."""
        thresholds: Literal["catu", "fixed", "relative"] = "catu"
        """CATU's max(s_pos, theta); theta alone (without CATU); or theta as a position between s_neg (0) and s_pos
        (1)."""
        similarity: Literal["cosine", "centred", "whitened", "auto"] = "cosine"
        """Compare raw features; features minus each category's mean over all images; or also whitened. auto:
        whitened if there are enough known positives for the feature dimension (shrinkage at most 1), else centred."""
        queue_size: int = 100
        """Positive features stored per category."""
        queue_fill: Fill = "zeros"
        """Whether empty queue slots count as similarity 0 ("zeros", the authors' code) or not (Eq. 6)."""
        theta_start: float = 0.95
        """theta in the first epoch of discovery."""
        theta_step: float = 0.025
        """Decrease of theta per epoch."""
        theta_floor: float = 0.6
        """Minimum of theta."""
        theta_before: float = 1.0
        """theta before discovery starts. Affects only CANR; 0.95 in the authors' code."""
        discover_from_epoch: int = 5
        """First epoch (0-based) of CALD and of theta's decrease."""
        reject_from_epoch: int = 0
        """First epoch (0-based) of CANR."""
        reject_gap: float = 0.3
        """theta_pos - theta_neg if thresholds are "fixed"."""
        reject_mean: Literal["kept", "all"] = "kept"
        """Average CANR's loss over the kept labels or over all."""
        printed_sign: bool = False
        """Negative control: Eq. 9 as printed, which rejects exactly what does not look positive."""
        csl: Literal["dense", "sampled"] = "dense"
        """Cross-image loss over all pairs, or over the authors' sample of them."""
        csl_weight: float = 0.05
        """Weight of the cross-image loss; 0 disables it."""
        csl_gather: bool = False
        """Under several processes: pairs of images of all of them, which costs sending their features around."""
        csl_ramp: bool = True
        """Ramp that weight up from 0 during the first epoch."""
        loss_scale: float = 1.0
        """Factor on the classification losses, not on the cross-image loss. It matters relative to Adam's coupled
        weight decay, and for what the cross-image loss weighs beside them."""
        centre_decay: float = 0.99
        """Momentum of the mean feature (and of its correlations); unused if the similarity is "cosine"."""
        shrinkage: float | None = None
        """With "whitened": added to the diagonal of the correlations; default: 0.15 D / (median of known positives)."""

    needs_features = True

    def __init__(self, config: Config, problem: Problem, feature_dim: int | None):
        super().__init__(config, problem, feature_dim)
        assert feature_dim is not None
        self.queue = FeatureQueue(problem.num_categories, config.queue_size, feature_dim, config.queue_fill)
        self.means = SimilarityMeans(problem.num_categories)
        self.centre: FeatureCentre | None = None
        self.whitening: Whitening | None = None
        shrinkage = shrinkage_of(config, problem, feature_dim)
        self.similarity = config.similarity
        if self.similarity == "auto":
            self.similarity = "whitened" if shrinkage <= 1 else "centred"
        if self.similarity != "cosine":
            self.centre = FeatureCentre(problem.num_categories, feature_dim, config.centre_decay)
        if self.similarity == "whitened":
            self.whitening = Whitening(feature_dim, config.centre_decay, shrinkage)

    # --- state ---

    def start_epoch(self, progress: Progress) -> None:
        self.means.start_epoch()
        if self.whitening is not None:
            self.queue.turn(self.whitening.renew())

    def observe(self, batch: Batch, outputs: Outputs, progress: Progress) -> None:
        assert outputs.features is not None
        known = batch.labels == PRESENT
        if self.centre is not None:
            self.centre.add(outputs.features)
        if self.whitening is not None:
            self.whitening.add(outputs.features - self.centre.mean)  # pyrefly: ignore[missing-attribute]
        features = self._compared(outputs.features)
        self.queue.add(features, known)  # before the similarity, so a positive is compared with itself too
        self.means.add(self.queue.mean_cosine(features), known)

    def _compared(self, features: Tensor) -> Tensor:
        if self.centre is not None:
            features = features - self.centre.mean
        return features if self.whitening is None else features @ self.whitening.transform

    # --- thresholds ---

    def theta(self, progress: Progress) -> float:
        c = self.config
        return theta_schedule(
            progress.epoch, c.theta_start, c.theta_step, c.theta_floor, c.discover_from_epoch, c.theta_before
        )

    def thresholds(self, progress: Progress) -> tuple[Tensor, Tensor]:
        """theta_pos and theta_neg, [C] each; infinite where no decision is possible yet."""
        theta, (s_pos, s_neg) = self.theta(progress), self.means.blend(progress.epoch_fraction)
        if self.config.thresholds == "fixed":
            theta_pos = torch.full_like(s_pos, theta)
            theta_neg = theta_pos - self.config.reject_gap
        else:
            relative = self.config.thresholds == "relative"
            theta_pos = s_neg + theta * (s_pos - s_neg) if relative else s_pos.clamp(min=theta)
            theta_neg = (theta_pos + s_neg) / 2
            theta_pos = theta_pos.masked_fill(relative & (s_pos <= s_neg), torch.inf)
        empty = self.queue.seen == 0
        return theta_pos.masked_fill(empty, torch.inf), theta_neg.masked_fill(empty, torch.inf)

    # --- loss ---

    def loss(self, batch: Batch, outputs: Outputs, progress: Progress) -> StepResult:
        decisions = self.decide(batch, outputs, progress)
        observed = assume_negative_loss(outputs.logits, batch.labels)  # AN
        losses = {"observed": observed.mean()}
        if "found" in decisions:
            labels = torch.where(decisions["found"], 1, batch.labels)
            losses["discovered"] = assume_negative_loss(outputs.logits, labels).mean()  # CALD
        if "rejected" in decisions:
            losses["kept"] = self._mean_over_kept(observed, ~decisions["rejected"])  # CANR
        losses = {name: self.config.loss_scale * loss for name, loss in losses.items()}
        if self.config.csl_weight:
            losses["cross_image"] = self._cross_image(batch, outputs, progress)
        return StepResult(losses, {name: mask.sum() for name, mask in decisions.items()}, decisions)

    @torch.no_grad()
    def decide(self, batch: Batch, outputs: Outputs, progress: Progress) -> dict[str, Tensor]:
        """Which unknown labels are "found" (Eq. 7) and which assumed negatives are "rejected" (Eq. 9) in this step."""
        assert outputs.features is not None
        discover = self.config.discover and progress.epoch >= self.config.discover_from_epoch
        reject = self.config.reject and progress.epoch >= self.config.reject_from_epoch
        decisions: dict[str, Tensor] = {}
        if not (discover or reject):
            return decisions
        unknown = batch.labels == UNKNOWN
        theta_pos, theta_neg = self.thresholds(progress)
        similarity = self.queue.mean_cosine(self._compared(outputs.features))
        if discover:
            decisions["found"] = unknown & (similarity >= theta_pos)
        if reject:
            chance = reject_probability(similarity, theta_pos, theta_neg)
            # As printed, Eq. 9 has lambda = 1 (keep) for this event. Read literally it would keep exactly the assumed
            # negatives that look positive, contrary to the text, so it is read as the event of rejection.
            event = chance > torch.rand_like(chance)
            decisions["rejected"] = unknown & (~event if self.config.printed_sign else event)
        return decisions

    def _mean_over_kept(self, losses: Tensor, kept: Tensor) -> Tensor:
        total = (losses * kept).sum()
        return total / (kept.sum().clamp(min=1) if self.config.reject_mean == "kept" else kept.numel())

    def _cross_image(self, batch: Batch, outputs: Outputs, progress: Progress) -> Tensor:
        assert outputs.features is not None
        loss = sampled_cross_image_loss if self.config.csl == "sampled" else cross_image_loss
        ramp = progress.epoch_fraction if self.config.csl_ramp and progress.epoch == 0 else 1.0
        features, positive = outputs.features, batch.labels == PRESENT
        if self.config.csl_gather:
            features, positive = of_all_processes(features, positive)
        return self.config.csl_weight * ramp * loss(features, positive)

    # --- what to log ---

    def category_stats(self, progress: Progress) -> Mapping[str, Tensor]:
        theta_pos, theta_neg = self.thresholds(progress)
        s_pos, s_neg = self.means.blend(progress.epoch_fraction)
        fill = self.queue.occupied()
        return {"theta_pos": theta_pos, "theta_neg": theta_neg, "s_pos": s_pos, "s_neg": s_neg, "queue_fill": fill}

    def epoch_stats(self, progress: Progress) -> Mapping[str, float]:
        per_category = self.category_stats(progress)
        stats = {"theta": self.theta(progress)}
        for name in ("theta_pos", "theta_neg"):
            finite = per_category[name][per_category[name].isfinite()]
            for percent in (10, 50, 90):
                stats[f"{name}_p{percent}"] = finite.quantile(percent / 100).item() if len(finite) else float("nan")
        for name in ("s_pos", "s_neg", "queue_fill"):
            stats[name] = per_category[name].mean().item()
        stats["s_pos_exceeds_theta"] = (per_category["s_pos"] > stats["theta"]).float().mean().item()
        return stats


class SimilarityMeans(nn.Module):
    """Mean similarity of known positives (s_pos) and of all other images (s_neg), per category (Eqs. 11-14)."""

    total: Tensor
    count: Tensor
    previous: Tensor

    def __init__(self, num_categories: int):
        super().__init__()
        for name in ("total", "count", "previous"):  # this epoch's sum and count, the last epoch's mean: [2, C]
            self.register_buffer(name, torch.zeros(2, num_categories))

    def add(self, similarity: Tensor, known: Tensor) -> None:
        sides = torch.stack([known, ~known]).to(similarity)  # [2, B, C]
        self.total += sum_across_ranks((sides * similarity).sum(1))
        self.count += sum_across_ranks(sides.sum(1))

    def start_epoch(self) -> None:
        self.previous.copy_(self._current())
        self.total.zero_()
        self.count.zero_()

    def blend(self, fraction: float) -> Tensor:
        """[2, C]: the epoch's mean so far, with weight b/B, combined with the last epoch's final mean."""
        return fraction * self._current() + (1 - fraction) * self.previous

    def _current(self) -> Tensor:
        """The epoch's mean so far; the last epoch's if nothing was seen yet."""
        return torch.where(self.count > 0, self.total / self.count.clamp(min=1), self.previous)


class FeatureCentre(nn.Module):
    """Running mean of each category's feature over all images: what they have in common, which carries no
    information."""

    total: Tensor
    weight: Tensor

    def __init__(self, num_categories: int, feature_dim: int, decay: float):
        super().__init__()
        self.decay = decay
        self.register_buffer("total", torch.zeros(num_categories, feature_dim))
        self.register_buffer("weight", torch.zeros(()))

    def add(self, features: Tensor) -> None:
        self.total.mul_(self.decay).add_(sum_across_ranks(features.sum(0)))
        self.weight.mul_(self.decay).add_(sum_across_ranks(features.new_tensor(float(len(features)))))

    @property
    def mean(self) -> Tensor:
        return self.total / self.weight.clamp(min=1)


class Whitening(nn.Module):
    """A transform that gives all feature directions equal weight, so that the dominant variation counts for little.

    The correlations are those of each image's centred feature, averaged over its categories, over all images, without
    labels. The transform is updated once per epoch.
    """

    moment: Tensor
    transform: Tensor

    def __init__(self, feature_dim: int, decay: float, shrinkage: float):
        super().__init__()
        self.decay, self.shrinkage = decay, shrinkage
        self.register_buffer("moment", torch.zeros(feature_dim, feature_dim))
        self.register_buffer("transform", torch.eye(feature_dim))  # a feature is a row: feature @ transform

    def add(self, centred: Tensor) -> None:
        per_image = centred.mean(1)  # [B, D]
        self.moment.mul_(self.decay).add_(sum_across_ranks(per_image.T @ per_image))

    def renew(self) -> Tensor:
        """Update the transform to the correlations seen; returns the matrix that maps vectors from the old space to the
        new one."""
        spread = self.moment.diagonal().clamp(min=1e-12).sqrt()
        unit = torch.eye(len(spread)).to(spread)
        correlation = self.moment / (spread[:, None] * spread)
        root = torch.linalg.cholesky(correlation + self.shrinkage * unit)  # root @ root.T
        old, seen = self.transform.clone(), self.moment.any()
        new = torch.linalg.solve_triangular(root, unit, upper=False).T / spread[:, None]
        self.transform.copy_(torch.where(seen, new, old))
        return torch.linalg.solve(old, self.transform)

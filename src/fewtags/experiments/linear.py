"""The yardstick `linear`: logistic regression on the frozen backbone's average-pooled features of the plain images.

Unknown labels count as absent. Every category is a regularised regression of its own; all are solved at once by L-BFGS.
The strength of the regularisation is chosen on a held-out fifth of the training images, by the rank of their known
labels: average precision hangs on the few ranked first, and then seeds differ by ten mAP with a tenth of the labels.
What comes out is a run folder like any other, but without a model to predict with.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fewtags.atomic import write_json
from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.data.prepare import RunData, prepare_data
from fewtags.engine.evaluation import Predictions, measure
from fewtags.engine.record import write_record
from fewtags.engine.run import Run, build_run, choose_device, make_batches
from fewtags.engine.run_log import RunLog
from fewtags.engine.training import summary_of
from fewtags.labels import PRESENT
from fewtags.models.discriminant import mean_log_rank
from fewtags.models.heads import Standardise

STRENGTHS = [float(10**exponent) for exponent in np.arange(-3, 1.1, 0.5)]  # times half the squared weights
HOLD_OUT = 5  # one image in so many chooses the strength
PATIENCE = 2  # so many weaker strengths are tried after the best one
MAX_ITERATIONS = 100


def train_linear(config: RunConfig, folder: Path, data: RunData | None = None, quiet: bool = False) -> None:
    """Leave in `folder` what a run leaves there, for `config` with the method `an` and the backbone frozen."""
    started = time.monotonic()
    data = data if data is not None else prepare_data(config.data, config.seed)
    run = build(frozen(config), folder, data, RunLog(folder, quiet=quiet))
    write_record(run)
    features, read = pooled_features(run, data.train)
    standardise = Standardise(features.shape[1])
    standardise.start([features])
    known = torch.from_numpy(data.train.labels == PRESENT)[read].float()
    strength = choose_strength(standardise(features), known, config.seed)
    run.log.say(f"Strength of the regularisation, chosen on held-out known labels: {strength:g}.")
    weight, bias = fit(standardise(features), known, strength)
    result = {"epochs": 1, "strength": strength, **evaluate(run, standardise, weight, bias)}
    write_json(folder / "result.json", {**result, "seconds": round(time.monotonic() - started, 1)})


def frozen(config: RunConfig) -> RunConfig:
    """The same settings with the whole backbone frozen."""
    return config.model_copy(update={"model": config.model.model_copy(update={"train_from": "head"})})


def build(config: RunConfig, folder: Path, data: RunData, log: RunLog) -> Run:
    """The run whose backbone and records are used. It is built without the cache, which would hold augmented views."""
    without_cache = config.model_copy(update={"cache": config.cache.model_copy(update={"enabled": False})})
    run = build_run(without_cache, folder, data, choose_device(config.train.device), log)
    run.config = config
    run.learner.model.takes_maps = config.cache.enabled
    return run


@torch.inference_mode()
def pooled_features(run: Run, part: Annotations) -> tuple[Tensor, np.ndarray]:
    """[M, D] features of the readable images, and their rows."""
    batches = make_batches(run.config, run.learner, part, run.device, training=False)
    model, features, rows = run.learner.model.eval(), [], []
    with run.log.progress_bar("Pooling features", batches.num_steps) as bar:
        for loaded in batches.epoch():
            bar.step()
            if loaded.batch is not None:
                images = loaded.batch.images.to(run.device)
                with run.autocast():
                    maps = images if model.takes_maps else model.backbone(images)
                features.append(maps.float().mean((2, 3)).cpu())
                rows.append(loaded.batch.index.numpy())
    return torch.cat(features), np.concatenate(rows)


def choose_strength(features: Tensor, known: Tensor, seed: int) -> float:
    """Of STRENGTHS, from the strongest on until it gets worse, the one that ranks the held-out images best."""
    held_out = torch.from_numpy(np.random.default_rng(seed).permutation(len(features)) % HOLD_OUT == 0)
    scores: dict[float, float] = {}
    start = None
    for strength in reversed(STRENGTHS):
        start = fit(features[~held_out], known[~held_out], strength, start)
        scores[strength] = -mean_log_rank(logits(features[held_out], *start), known[held_out])
        if max(scores.values()) > max(list(scores.values())[-PATIENCE:]):
            break
    return max(scores, key=lambda strength: scores[strength])


def fit(
    features: Tensor, known: Tensor, strength: float, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Weights [C, D] and biases [C] that minimise mean log loss + strength / 2 * |w|^2 in each category."""
    if start is None:
        prior = (known.sum(0) + 0.5) / (len(known) + 1)
        start = torch.zeros(known.shape[1], features.shape[1]), torch.logit(prior)
    weight, bias = (part.clone().requires_grad_() for part in start)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=MAX_ITERATIONS, tolerance_change=1e-7, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.binary_cross_entropy_with_logits(logits(features, weight, bias), known, reduction="none").mean(0)
        total = (loss + 0.5 * strength * weight.square().sum(1)).sum()
        total.backward()
        return total

    solver.step(closure)
    return weight.detach(), bias.detach()


def logits(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return features @ weight.T + bias


def evaluate(run: Run, standardise: Standardise, weight: Tensor, bias: Tensor) -> dict[str, Any]:
    """Scores by split, as at the end of any run; there is one epoch, so the best is the last."""
    result: dict[str, Any] = {}
    for name, part in (("val", run.data.val), ("test", run.data.test)):
        if part is None:
            continue
        features, read = pooled_features(run, part)
        probabilities = np.full(part.labels.shape, np.nan, dtype=np.float32)
        probabilities[read] = logits(standardise(features), weight, bias).sigmoid().numpy()
        np.savez_compressed(run.folder / f"predictions-{name}.npz", probabilities=probabilities)
        result[name] = summary_of(measure(Predictions(probabilities, {}), part))
        result["best"] = {"epoch": 1, "split": name, **result[name]}
        run.log.row("eval", 1, {"split": name, **result[name]})
    return result

"""Closed-form heads saved by version 0.1, under the names that today's head has."""

from __future__ import annotations

import torch
from torch import Tensor

from fewtags.presence.decisions import DIRECTIONS

OLD, NEW = "discriminant.", "presence."


def current_state(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The head's tensors with `prefix`, as `ClosedFormHead` names them; those of today stay as they are.

    Scores were x' w, log-odds bent(slope * score + intercept), of which the best window's score had a share.
    """
    old = {key.removeprefix(prefix + OLD): value for key, value in state.items() if key.startswith(prefix + OLD)}
    if not old:
        return state
    rest = {key: value for key, value in state.items() if not key.startswith((prefix + OLD, prefix + "best_window."))}
    slope, bias = old.get("slope", torch.ones(len(old["weights"]))), old["intercept"]
    share = state.get(prefix + "best_window.share", torch.zeros(()))
    new = {"weights": old["weights"], "mean": old.get("mean", torch.zeros(old["weights"].shape[1]))}
    new |= {name: old[name] for name in ("name_weight", "name_mean", "name_factor", "thresholds") if name in old}
    new["slope"], new["bend"] = slope * (1 - share), old.get("bend", torch.zeros(()))
    new["bias"], new["window_slope"] = bias, torch.zeros_like(slope)
    if share > 0:
        factor, offset = state[prefix + "best_window.factor"], state[prefix + "best_window.offset"]
        new["window_slope"], new["bias"] = slope * share * factor, bias + slope * share * offset
    if "vectors" in old:
        strongest = old["vectors"][:, -DIRECTIONS:]
        new["directions"] = strongest / old["scale"][:, None] / max(float(old["scale"].isfinite().sum()), 1.0) ** 0.5
    known = old.get("known_proportion", torch.full_like(slope, 0.5))
    new["habit"] = known.clamp(1e-4, 1 - 1e-4).logit()
    return rest | {f"{prefix}{NEW}{name}": value for name, value in new.items()}

"""Why estimates without whole bursts are low: the same with made features, where the truth of the archive is known.

    .venv/bin/python benchmarks/bursts_made.py

600 photos with 256 made features and 20 tags, a third of them six times; and, for comparison, 600 and 1,600 photos
without copies. Estimated is the mAP that the known tags give, left out that of the same left-out scores against the
archive's whole truth, and new that of the model on 1,500 other photos. Means over three draws.
"""

from __future__ import annotations

import statistics

import torch
from bursts import estimated_map, judged
from torch import Tensor

from fewtags.metrics import mean_average_precision
from fewtags.presence.ridge import unit_length

DIM, TAGS, STRENGTH = 256, 20, 0.35


def made(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Unit-length features, and which tags are present."""
    random = torch.Generator().manual_seed(seed)
    directions = torch.randn(TAGS, DIM, generator=torch.Generator().manual_seed(99))
    truth = torch.rand(number, TAGS, generator=random) < 0.08
    noise = 1.0 + torch.randn(number, DIM, generator=random)
    return unit_length(noise + STRENGTH * truth.float() @ directions), truth


def with_copies(features: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Every third one six times, and which photo each is of."""
    scene = torch.cat([torch.arange(600), torch.arange(0, 600, 3).repeat_interleave(5)])
    off = 0.25 / DIM**0.5 * torch.randn(len(scene), DIM, generator=random)
    return unit_length(features[scene] + off * (torch.arange(len(scene)) >= 600)[:, None]), scene


def percents(features: Tensor, truth: Tensor, known: Tensor, groups: Tensor | None, seed: int) -> list[float]:
    model, odds = judged(features, known, groups)
    others, right = made(1500, 100 + seed)
    found = model.log_odds(others).sigmoid()
    left_out = mean_average_precision(odds.numpy(), truth.numpy())
    new = mean_average_precision(found.numpy(), right.numpy())
    return [100 * estimated_map(model, odds, known), 100 * left_out, 100 * new]


def main() -> None:
    rows: dict[tuple[float, str], list[list[float]]] = {}
    for seed in range(3):
        random = torch.Generator().manual_seed(7 + seed)
        photos, truth = made(600, seed)
        copies, scene = with_copies(photos, random)
        archives: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
            "600 photos": (photos, truth, None),
            "1,600 photos": (*made(1600, 50 + seed), None),
            "with copies, single": (copies, truth[scene], None),
            "with copies, groups": (copies, truth[scene], scene),
        }
        for share in (0.1, 0.3):
            draw = int(torch.randint(2**31, (), generator=random))
            for name, (features, present, groups) in archives.items():
                drawn = torch.rand(present.shape, generator=torch.Generator().manual_seed(draw)) < share
                known = (present & drawn).to(torch.int8)
                rows.setdefault((share, name), []).append(percents(features, present, known, groups, seed))
    print("| known | archive | estimated mAP | left out | new |\n|---|---|---|---|---|")
    for (share, name), values in rows.items():
        means = " | ".join(f"{statistics.mean(column):.1f}" for column in zip(*values, strict=True))
        print(f"| {share:.0%} | {name} | {means} |")


if __name__ == "__main__":
    main()

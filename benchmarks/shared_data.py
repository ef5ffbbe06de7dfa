"""Options and the backbone of benchmarks that measure on photos in a shared folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from fewtags.models.backbones import Backbone, create_backbone

ROOT = Path(__file__).resolve().parents[1]
BACKBONE = "tf_efficientnet_lite0"


def shared_parser(description: str | None, seeds: str) -> argparse.ArgumentParser:
    """--shared, --cache and --seeds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--cache", default="feature-cache")
    parser.add_argument("--seeds", default=seeds)
    return parser


def shared_backbone(shared: Path) -> Backbone:
    weights = shared / f"weights/{BACKBONE}_fp16.safetensors"
    return create_backbone(BACKBONE, pretrained=False, weights=weights, keep_classifier=True).eval()

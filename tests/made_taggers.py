"""A Tagger that fits in a second."""

from __future__ import annotations

from conftest import TINY
from fewtags import Tagger

SETTINGS = [setting for setting in TINY if not setting.startswith(("method", "model.backbone", "model.pretrained"))]


def make(**parameters) -> Tagger:
    given = {"method": "an", "backbone": "test_resnet", "pretrained": False, "settings": SETTINGS, **parameters}
    return Tagger(**given)

"""Where a saved model is in a folder, and what its weights are called: names alone, without torch."""

from __future__ import annotations

from pathlib import Path

MODEL_FOLDER = "model"  # the saved model in a run's folder
OLD_MODEL = "update/old-model"  # where `fewtags update` puts it aside for the moment in which it installs the next
WEIGHTS = "model.safetensors"  # in a saved model


def model_places(folder: Path) -> tuple[Path, ...]:
    """Where the model of a run may be, or a saved one. An update that was killed may have left the old one aside."""
    return folder / MODEL_FOLDER, folder / OLD_MODEL, folder

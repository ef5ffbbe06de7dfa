"""Reads what torch.save wrote, without executing pickled code; and where a saved model has its tensors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

MODEL_FOLDER = "model"  # a saved model in the folder of a run
WEIGHTS = "model.safetensors"  # in a saved model


def read_tensors(file: Path) -> Any:
    """Tensors and plain values. Raises ValueError with the reason in a few words."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError("not plain tensors and values; pickled code is never run") from None
    except Exception as error:  # damaged bytes make torch raise nearly anything
        raise ValueError(first_line(error)) from error


def first_line(error: Exception) -> str:
    """What an exception of another library says, cut to fit into a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:150].rstrip(".:") if lines else type(error).__name__

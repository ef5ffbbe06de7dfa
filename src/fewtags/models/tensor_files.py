"""Reads what torch.save and NumPy wrote, without executing pickled code; hashes tensors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewtags.errors import UserError


def read_tensors(file: Path) -> Any:
    """Tensors and plain values. Raises ValueError with a short reason."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError("not plain tensors and values; pickled code is never run") from None
    except Exception as error:  # torch may raise almost anything on damaged bytes
        raise ValueError(first_line(error)) from error


def read_arrays(file: Path, *names: str) -> list[np.ndarray]:
    """Those of a .npz file that fewtags wrote, read without pickle. Raises UserError where it is damaged."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except FileNotFoundError:
        raise UserError(f"{file} does not exist.") from None
    except Exception as error:  # damaged bytes make zipfile and NumPy raise nearly anything
        raise UserError(f"{file} is damaged ({first_line(error)}); remove it, or create it again.") from error


def first_line(error: Exception) -> str:
    """The message of another library's exception, shortened to fit in a sentence."""
    lines = str(error).strip().splitlines()
    return shorten(lines[0], 150, placeholder=" …").rstrip(".:") if lines else type(error).__name__


def add_tensors(digest: Any, tensors: Mapping[str, Tensor]) -> None:
    """Names and values of `tensors` into a hash."""
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())

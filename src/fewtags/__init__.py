"""fewtags: train a multi-label image tagger when only a few of the tags are known."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["Annotations", "Tagger", "__version__", "hide_labels", "list_methods", "metrics"]

_HOME = {
    "Annotations": "fewtags.data.annotations",
    "Tagger": "fewtags.tagger",
    "hide_labels": "fewtags.data.partial_labels",
    "list_methods": "fewtags.methods",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so `import fewtags` and `fewtags --help` are fast."""
    import importlib

    if name == "metrics":
        return importlib.import_module("fewtags.metrics")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fewtags' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

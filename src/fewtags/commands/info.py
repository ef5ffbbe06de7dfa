"""The output of `fewtags methods` and `fewtags doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from fewtags.methods import Method, find_method, grouped

CORE = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pydantic", "typer")


def list_table() -> str:
    """Every method with its title, venue, sentence, head and settings, group by group."""
    lines: list[str] = []
    for group, methods in grouped().items():
        lines += [f"{group[0].upper()}{group[1:]}", ""]
        for method in methods:
            lines += _entry(method)
        lines.append("")
    return "\n".join([*lines, "See `fewtags methods NAME` for a method's settings, profiles and citation."])


def _entry(method: Method) -> list[str]:
    from fewtags.methods import objective_class

    config = objective_class(method.name).Config
    settings = [f"{key}={_default(config, key, method.settings, 'method')}" for key in config.model_fields]
    about = [method.sentence, f"Head: {method.head}. Settings: {', '.join(settings) or 'none'}"]
    lines = [f"  {method.name}: {method.title} ({method.venue})"]
    return lines + [textwrap.fill(text, 110, initial_indent=" " * 6, subsequent_indent=" " * 6) for text in about]


def describe_method(name: str) -> str:
    from fewtags.methods import objective_class
    from fewtags.models.heads import head_class

    method = find_method(name)
    lines = [f"{method.name}: {method.title}", method.venue, "", textwrap.fill(method.sentence, 100), ""]
    lines += ["Settings (method.NAME=VALUE)", *_settings(objective_class(name).Config, method.settings, "method")]
    lines += ["", f"Head: {method.head} (head.NAME=VALUE)"]
    lines += _settings(head_class(method.head).Config, method.settings, "head")
    others = {k: v for k, v in method.settings.items() if not k.startswith(("method.", "head."))}
    if others:
        lines += ["", "Other settings it changes by default"] + [f"  {k} = {v}" for k, v in others.items()]
    if method.note:
        lines += ["", f"Profile default: {method.note}"]
    for name, profile in method.profiles.items():
        lines += ["", f"Profile {name} (--profile {name}){': ' + profile.note if profile.note else ''}"]
        lines += [f"  {key} = {value}" for key, value in profile.settings.items()]
    return "\n".join([*lines, "", method.bibtex]).rstrip()


def _settings(kind: Any, changed: Any, group: str) -> list[str]:
    lines = []
    for name, field in kind.model_fields.items():
        text = f"  {name} = {_default(kind, name, changed, group)}"
        lines.append(f"{text:32}{' '.join((field.description or '').split())}".rstrip())
    return lines or ["  none"]


def _default(kind: Any, name: str, changed: Any, group: str) -> Any:
    """The default of a setting: the method's own, else the general one."""
    return changed.get(f"{group}.{name}", kind.model_fields[name].default)


def describe_installation() -> str:
    import torch

    import fewtags

    lines = [f"fewtags {fewtags.__version__}", f"Python {platform.python_version()} on {platform.platform()}"]
    lines += [f"{name} {_version(name) or 'missing'}" for name in CORE]
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    lines.append(f"CUDA: {', '.join(gpus) or 'no device'}; Apple GPU: {_yes(torch.backends.mps.is_available())}")
    lines.append(f"CPU: {os.cpu_count()} cores, {torch.get_num_threads()} threads for torch")
    lines += [describe_extra(extra, packages) for extra, packages in extras_of(_requirements()).items()]
    return "\n".join(lines)


def extras_of(requirements: Iterable[str]) -> dict[str, list[str]]:
    """Packages of each extra except dev, from requirements such as `pyarrow>=14; extra == 'words'`."""
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        package, extra = re.match(r"[\w.-]*", requirement), re.search(r"""extra == ['"]([\w.-]+)""", requirement)
        if package is not None and extra is not None and extra[1] != "dev":
            extras.setdefault(extra[1], []).append(package[0])
    return extras


def describe_extra(extra: str, packages: Iterable[str]) -> str:
    versions = {package: _version(package) for package in packages}
    there = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    missing = ", ".join(package for package, version in versions.items() if not version)
    hint = f"pip install 'fewtags[{extra}]'"
    if not missing:
        return f"extra '{extra}': {there}"
    return f"extra '{extra}': " + (f"{there}; without {missing} ({hint})" if there else f"not installed ({hint})")


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("fewtags") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source folder without installation
        return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _yes(value: bool) -> str:
    return "yes" if value else "no"

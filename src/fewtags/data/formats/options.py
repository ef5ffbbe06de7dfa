"""Options for what cannot be detected from the dataset itself.

Every layout accepts ReadOptions; a reader with more options defines a subclass in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import ConfigDict, Field, ValidationError, field_validator

from fewtags.data.aliases import clean, read_aliases
from fewtags.data.tag_names import Hierarchy, TagRules
from fewtags.errors import UserError, did_you_mean
from fewtags.settings import Settings

Options = TypeVar("Options", bound="TypedOptions")


class TypedOptions(Settings):
    """Options given as `-o name=value`: text is converted to the field's type."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], who: str, elsewhere: Mapping[str, str] | None = None) -> Self:
        """`who` takes these options ("The csv reader"); `elsewhere` maps other options to their owner."""
        for name in values:
            if name not in cls.model_fields:
                others = f" ({elsewhere[name]} has it)" if elsewhere and name in elsewhere else ""
                raise UserError(f"{who} has no option '{name}'{others}; {did_you_mean(name, cls.model_fields)}")
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            given = repr(values.get(name)) if name in values else repr(first["input"])
            reason = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
            raise UserError(f"{name}={given} is not usable: {reason}.") from None


class ReadOptions(TypedOptions):
    categories: list[str] | Path | None = None
    """The categories to use, in this order: a list, or a text file with one name per line. Default: all that occur."""
    complete: bool = False
    """Every image's tag list is complete, so a tag that is not listed is absent. Default: it is unknown."""
    train_list: Path | None = None
    """Text file of the training images, one per line. Images in none of the given lists are skipped."""
    test_list: Path | None = None
    """Text file of the test images, one per line. If it is the only list, all other images are training images."""
    aliases: Path | None = None
    """YAML file that merges, renames, implies and excludes tags. `fewtags check --propose FILE` drafts one."""
    min_images: int = Field(0, ge=0)
    """Drop tags that fewer images than this are known to have."""
    merge_case: bool = True
    """Merge tags that differ only in case or whitespace."""
    hierarchy: Hierarchy = "all"
    """Tags for "animal|dog": both, and dog implies animal (all); only dog (leaf); or "animal|dog" as it is (none)."""
    groups: Literal["folders", "bursts"] | None = None
    """Images of one folder, or of one burst (taken by one camera within seconds, by their EXIF), are one unit: they are
    held out and judged together. Default: what the labels say."""
    detections: Path | None = None
    """MegaDetector's results for the images: those without a detection are left out as blank."""
    min_detection: float = Field(0.2, ge=0, le=1)
    """With `detections`: how sure a detection must be."""
    crops: Path | None = None
    """With `detections`: a folder for pictures of the surest detection of each image, which are used instead."""

    @field_validator("categories", mode="before")
    @classmethod
    def _list_from_text(cls, value: Any) -> Any:
        """Parse `[cat, dog]` from the command line."""
        if isinstance(value, str) and value.strip().startswith("["):
            try:
                value = yaml.load(value, Loader=yaml.BaseLoader)
            except yaml.YAMLError:
                raise ValueError("it should be a list like [cat, dog]") from None
        return [clean(str(name)) for name in value] if isinstance(value, list | tuple) else value

    def category_list(self) -> list[str] | None:
        if isinstance(self.categories, Path):
            return [clean(line) for line in read_lines(self.categories)]
        return self.categories

    def tag_rules(self) -> TagRules:
        """How tags are named. Rare ones are dropped only if no list of categories was given."""
        rules: dict[str, Any] = {"merge_case": self.merge_case, "hierarchy": self.hierarchy}
        if self.aliases is not None:
            rules["aliases"] = read_aliases(self.aliases)
        return TagRules(**rules, min_images=self.min_images if self.categories is None else 0)


class LabelFileOptions(ReadOptions):
    """For layouts in which a file lists the images."""

    keep_untagged: bool | None = None
    """Keep images in the folder that the file does not list, as unknown. Default: yes, unless lists are complete."""
    allow_outside: bool = False
    """Accept image paths outside the data folder (`../x.jpg`, or absolute ones)."""


def read_lines(file: Path) -> list[str]:
    """The non-blank lines of a text file."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{file} should be a text file with one name per line; it cannot be read ({error}).") from None
    return [line.strip() for line in lines if line.strip()]

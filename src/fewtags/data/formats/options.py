"""What a person can say about their dataset when looking at it is not enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fewtags.errors import UserError, did_you_mean
from fewtags.settings import Settings


class ReadOptions(Settings):
    categories: list[str] | Path | None = None
    """The categories to use, in this order: a list, or a text file with one name per line. Default: all that occur."""
    complete: bool = False
    """Every image's tag list is complete, so a tag that is not listed is absent. Default: it is unknown."""
    train_list: Path | None = None
    """Text file of the training images, one per line. Images that no given list names are left out."""
    test_list: Path | None = None
    """Text file of the test images, one per line. Given alone, all other images are for training."""

    delimiter: str | None = None
    """What stands between the columns of a CSV file. Default: looked for among comma, semicolon, tab and bar."""
    separator: str | None = None
    """What stands between the tags in one cell. Default: looked for among comma, semicolon, bar and, last, space."""
    image_column: str | None = None
    """The CSV column with the image files. Default: found by its content, then by its name."""
    tag_column: str | None = None
    """The CSV column with the tags. Default: found by its name, or the only column left."""
    absent_column: str | None = None
    """The CSV column with the tags known not to apply. Default: the one called 'absent'."""
    split_column: str | None = None
    """The CSV column that says train, val or test. Default: the one called 'split'."""
    zero: Literal["unknown", "absent"] | None = None
    """What a 0 means in a one-hot CSV. Default: see docs/reference/data-formats.md; what was chosen is always said."""
    minus_one: Literal["absent", "unknown"] | None = None
    """What a -1 means in a one-hot CSV: 'unknown' for CheXpert's "uncertain". Default: absent, see zero."""

    year: int | None = None
    """Which VOC or COCO year to read when a folder holds several."""
    difficult: Literal["drop", "ignore"] = "drop"
    """A VOC category seen only in `difficult` objects is absent (drop, as in the paper) or unknown (ignore)."""
    num_categories: int = 200
    """Visual Genome: how many of the most frequent names are categories."""
    test_images: int = 10_000
    """Visual Genome: how many images are drawn for testing when no list is given."""
    split_seed: int = 0
    """Visual Genome: the seed of that draw."""

    @classmethod
    def parse(cls, options: dict[str, Any]) -> ReadOptions:
        for name in options:
            if name not in cls.model_fields:
                raise UserError(f"Reading data has no setting '{name}'; {did_you_mean(name, cls.model_fields)}")
        try:
            return cls(**options)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{first['loc'][0]}={first['input']!r} is not usable: {first['msg']}.") from None

    def category_list(self) -> list[str] | None:
        if isinstance(self.categories, Path):
            return read_lines(self.categories)
        return self.categories


def read_lines(file: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} should be a text file with one name per line; it cannot be read ({error}).") from None
    return [line.strip() for line in lines if line.strip()]

"""`fewtags example`: a small photo archive to try everything on, drawn here and now.

Its pictures have the keywords of a person who did not type all of them, in the files themselves, as photo programs
write them. Photographs are not shipped: those in the public domain that packages bring are too few to learn from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from fewtags.atomic import atomic_write
from fewtags.data.scenes import BACKBONE, draw_scene
from fewtags.errors import UserError
from fewtags.progress import progress_bar

NUM_PHOTOS, SIZE = 300, 192
TYPED = 0.45  # of what is in a picture, on average
PLACES = ("2023/07 July", "2023/12 December", "2024/04 April", "2024/08 August", "2025/01 January")
SETTINGS = {
    "model": {"backbone": "test_resnet", "weights": str(BACKBONE), "output_stride": 16, "train_from": "head"},
    "input": {"size": 96, "resize": 96, "crops": [96]},
}
PACKET = """<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:subject><rdf:Bag>{items}</rdf:Bag></dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>
<?xpacket end="w"?>"""


def make_example(folder: Path, seed: int = 0, *, quiet: bool = False) -> list[str]:
    """Draw the archive into a new folder; returns what to do with it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; choose a new folder.")
    photos = folder / "photos"
    rates = np.random.default_rng(seed).beta(3, 3.7, 64)  # how often this person types a tag at all
    names: dict[str, int] = {}
    with progress_bar("Drawing", NUM_PHOTOS, quiet=quiet, unit="pictures") as bar:
        for number in range(NUM_PHOTOS):
            rng = np.random.default_rng([seed, 7, number])
            picture, present = draw_scene(rng, SIZE)
            tags = [tag for tag in sorted(present) if rng.random() < rates[names.setdefault(tag, len(names))]]
            place = photos / PLACES[number * len(PLACES) // NUM_PHOTOS]
            place.mkdir(parents=True, exist_ok=True)
            save_photo(picture, place / f"IMG_{4000 + number}.jpg", tags)
            bar.step()
    config, run = folder / "example.yaml", folder / "first"
    with atomic_write(config) as temporary:
        content = {"data": {"source": str(photos)}, **SETTINGS}
        temporary.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return [
        f"{NUM_PHOTOS} pictures in {photos}; their keywords are in the files. Next:",
        f"  fewtags check {photos}",
        f"  fewtags train {config} --out {run}",
        f"  fewtags review {run}",
        f"{config.name} names a small backbone for drawings; photos of your own need no such file.",
    ]


def save_photo(picture: Image.Image, file: Path, keywords: list[str]) -> None:
    items = "".join(f"<rdf:li>{keyword}</rdf:li>" for keyword in keywords)
    packet = PACKET.format(items=items).encode() if keywords else b""
    picture.save(file, quality=88, xmp=packet)

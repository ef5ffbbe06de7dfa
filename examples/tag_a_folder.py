"""Photos and a tag file in, suggestions for missing tags out.

python examples/tag_a_folder.py photos/ tags.csv     your photos
python examples/tag_a_folder.py                      generated pictures
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from fewtags import Annotations, Tagger, hide_labels
from fewtags.data.formats import read_annotations
from fewtags.data.scenes import BACKBONE, make_scenes
from fewtags.labels import UNKNOWN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder with photos")
    parser.add_argument("tags", nargs="?", help="file with the known tags")
    parser.add_argument("--show", type=int, default=15, help="suggestions to print")
    arguments = parser.parse_args()
    if arguments.folder:
        annotations, tagger = read_annotations(arguments.folder, tags=arguments.tags), Tagger(verbose=True)
    else:
        annotations = drawn_pictures(Path(tempfile.mkdtemp(prefix="fewtags-example-")))
        tagger = Tagger(backbone="test_resnet", weights=BACKBONE, settings=["input.size=96"])
    tagger.fit(annotations)
    suggest(tagger, annotations, arguments.show)


def drawn_pictures(folder: Path) -> Annotations:
    """200 pictures with only 40 % of the tags known."""
    scenes = make_scenes(folder, num_train=200, num_test=0)
    scenes.labels[:] = hide_labels(scenes.labels == 1, 0.4)
    return scenes


def suggest(tagger: Tagger, annotations: Annotations, show: int) -> None:
    """The unknown tags that are most probably present, most certain first."""
    probabilities = np.where(annotations.labels == UNKNOWN, tagger.predict_proba(annotations), 0)
    for place in np.argsort(-probabilities, axis=None)[:show]:
        row, category = np.unravel_index(place, probabilities.shape)
        print(f"{probabilities[row, category]:.2f}  {annotations.categories[category]:12} {annotations.path(int(row))}")


if __name__ == "__main__":
    main()

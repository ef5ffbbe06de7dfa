"""A simulated reviewer who answers with the truth: how many answers until most of the hidden tags are found?

For each tag, candidates are shown most likely first: once with the initial ranking, and once with a
tagger that learns from every answer, as the page of `fewtags review` does.

    python examples/learn_by_clicking.py
"""

from __future__ import annotations

import copy
import tempfile

import numpy as np

from fewtags import Tagger, hide_labels
from fewtags.data.scenes import BACKBONE, make_scenes

KNOWN = 0.15  # share of the true tags the tagger starts with
FOUND = 0.8  # share of the hidden tags to find


def main() -> None:
    scenes = make_scenes(tempfile.mkdtemp(prefix="fewtags-example-"), num_train=400, num_test=0)
    truth = scenes.labels == 1
    known = hide_labels(truth, KNOWN)
    scenes.labels[:] = known
    tagger = Tagger(backbone="test_resnet", weights=BACKBONE, settings=["input.size=96", "data.val_share=0"])
    tagger.fit(scenes)
    features = tagger.features(scenes)
    answers = {"fixed ranking": 0, "learning": 0}
    hidden = 0
    for category, tag in enumerate(scenes.categories):
        queue = np.flatnonzero(known[:, category] == 0)
        wanted = int(np.ceil(FOUND * truth[queue, category].sum()))
        hidden += wanted
        for name in answers:
            own = copy.deepcopy(tagger)  # each tag and ranking starts from the same tagger
            answers[name] += review(own, tag, features, truth[:, category], queue, wanted, learn=name == "learning")
    print(f"To find {FOUND:.0%} of the hidden tags of each category ({hidden} in all):")
    for name, number in answers.items():
        print(f"  {name:14} {number:5} answers, {number / hidden:.2f} per tag found")


def review(
    tagger: Tagger, tag: str, features: np.ndarray, truth: np.ndarray, queue: np.ndarray, wanted: int, learn: bool
) -> int:
    """Answers needed to find `wanted` of the images in `queue` that have the tag."""
    left, found, answers = queue, 0, 0
    order, _ = tagger.rerank(tag, features[left])
    while found < wanted:
        row, left = left[order[0]], np.delete(left, order[0])
        answers += 1
        found += int(truth[row])
        if learn:
            tagger.relabel(features[row], tag, 1 if truth[row] else -1)
            order, _ = tagger.rerank(tag, features[left]) if len(left) else (order, None)
        else:
            order = np.where(order > order[0], order - 1, order)[1:]
    return answers


if __name__ == "__main__":
    main()

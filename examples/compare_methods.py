"""Three methods at two known proportions, evaluated on complete labels.

For a real comparison with seeds and tables use `fewtags bench`; this shows the same in Python.

    python examples/compare_methods.py
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

from fewtags import Tagger, hide_labels
from fewtags.data.scenes import BACKBONE, make_scenes

METHODS = ("linear", "instant", "refined")
KNOWN = (0.1, 0.5)


def main() -> None:
    scenes = make_scenes(tempfile.mkdtemp(prefix="fewtags-example-"), num_train=300, num_test=150)
    train, test = scenes.split("train"), scenes.split("test")
    print(f"{'test mAP':10}" + "".join(f"{f'{share:.0%} known':>12}" for share in KNOWN))
    for method in METHODS:
        scores = []
        for share in KNOWN:
            partial = replace(train, labels=hide_labels(train.labels == 1, share))
            tagger = Tagger(method, "test_resnet", weights=BACKBONE, settings=["input.size=96", "data.val_share=0"])
            scores.append(tagger.fit(partial).score(test))
        print(f"{method:10}" + "".join(f"{100 * score:12.1f}" for score in scores))


if __name__ == "__main__":
    main()

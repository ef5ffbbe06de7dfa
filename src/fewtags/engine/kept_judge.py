"""What was fitted to the images of a run, kept beside it: fitting to 100,000 images takes ten seconds, loading less
than one.

It depends on the images, the model, the given labels and the code, and is fitted again if any of them has changed.
Decisions are learned from after it was loaded, so it does not depend on them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import fewtags.engine.judge as judging
from fewtags import presence
from fewtags.config import RunConfig
from fewtags.data.annotations import Annotations
from fewtags.data.images import DECODER
from fewtags.engine.feature_spec import FeatureSpec
from fewtags.engine.feature_store import FeatureStore
from fewtags.engine.features import FeaturesOnDisk, bar_of, cache_root
from fewtags.engine.judge import Judge
from fewtags.engine.kept import code_of, keep, key_of, load_kept
from fewtags.engine.model_outputs import ModelOutputs, UnitFeatures, maker_of, wanted_outputs
from fewtags.engine.run import choose_device
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import RunLog
from fewtags.models.places import WEIGHTS
from fewtags.models.saved import SavedModel, without_paths
from fewtags.presence.bursts import burst_leaders
from fewtags.presence.decision_learner import DecisionLearner
from fewtags.presence.model import Presence

SMALL = 2000  # images, up to which fitting takes no time worth saving


@dataclass(frozen=True)
class KeptJudge:
    run: Path
    annotations: Annotations
    given: np.ndarray  # [N, C]
    config: RunConfig
    device: str
    quiet: bool
    store: FeatureStore
    contents: np.ndarray  # [N, 2] of the image files
    features_key: str
    key: str

    @classmethod
    def of(
        cls, run: Path, annotations: Annotations, given: np.ndarray, config: RunConfig, device: str, quiet: bool
    ) -> KeptJudge | None:
        """None where nothing is kept: for few images, or if the run keeps no features."""
        weights = RunFolder(run).model / WEIGHTS
        if len(annotations) <= SMALL or config.cache.enabled is False or not weights.is_file():
            return None
        store, root = FeatureStore(cache_root(config.cache)), str(annotations.root.absolute())
        files = [*(os.path.join(root, image) for image in annotations.images), str(weights)]
        with bar_of(RunLog(RunFolder(run), quiet), "Reading images", len(files)) as bar:
            contents = store.contents(files, bar)
        # pyrefly: ignore[bad-argument-type]  # a module has a hash
        features_key = key_of(_settings(config, device), contents.tobytes(), code_of(presence))
        groups = None if annotations.groups is None else annotations.groups.tobytes()
        # pyrefly: ignore[bad-argument-type]  # a module has a hash
        key = key_of(features_key, given.tobytes(), str(given.shape), groups, code_of(judging))
        return cls(run, annotations, given, config, device, quiet, store, contents[:-1], features_key, key)

    @property
    def file(self) -> Path:
        return RunFolder(self.run).outputs / "judge.npz"

    def load(self, saved: Callable[[], SavedModel]) -> tuple[ModelOutputs, Judge] | None:
        """None if it was not kept, or if the store has lost features: `saved` is only asked for what nobody foresees,
        such as damaged features, and words."""
        kept = load_kept(self.file, self.key)
        if kept is None:
            return None
        shelf = self.store.shelf(FeatureSpec.from_json(str(kept["spec"])), pooled=True)
        found, readable = shelf.find(self.contents), kept["readable"]
        if (found[readable] < 0).any():
            return None
        broken = {int(row): reason for row, reason in json.loads(str(kept["broken"])).items()}
        features = FeaturesOnDisk(
            shelf,
            np.where(readable, found, -1)[None],
            broken,
            lambda: wanted_outputs(saved(), self.annotations, self.config, self.device, self.quiet),
        )
        outputs = ModelOutputs(features, len(self.annotations), self.features_key)
        names = lambda features: saved().classifier.head.name_scores(features)  # noqa: E731
        return outputs, _restored(kept, self.given, outputs, names)

    def save(self, outputs: ModelOutputs, judge: Judge, saved: Callable[[], SavedModel]) -> tuple[ModelOutputs, Judge]:
        """What is kept, as it was given; of images whose features are in the store."""
        spec = maker_of(saved(), self.config, self.device).spec
        broken = np.array(json.dumps(outputs.unreadable))
        keep(self.file, self.key, spec=np.array(spec.to_json()), broken=broken, **_stored(judge))
        return replace(outputs, key=self.features_key), judge


def _stored(judge: Judge) -> dict[str, np.ndarray]:
    """What took long to compute; before it learns from decisions."""
    model = {f"model.{name}": value.cpu().numpy() for name, value in judge.model.state_dict().items()}
    has_names = np.array(judge.name_scorer is not None)
    more = {"odds": judge.odds, "readable": judge.readable, "has_names": has_names}
    return {**more, "odds_of_sample": judge.learner.sample_odds.numpy(), **model}


def _restored(
    arrays: Mapping[str, np.ndarray],
    labels: np.ndarray,
    outputs: ModelOutputs,
    name_scorer: Callable[[Tensor], Tensor | None],
) -> Judge:
    parts = {name.removeprefix("model."): value for name, value in arrays.items() if name.startswith("model.")}
    model = Presence(*parts["weights"].shape)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in parts.items()})
    scorer = name_scorer if arrays["has_names"] else None
    judge = Judge(model, arrays["odds"], labels, arrays["readable"], outputs.unit_features, scorer)
    judge.__dict__["learner"] = DecisionLearner(model, torch.from_numpy(arrays["odds_of_sample"]))  # needs no head then
    return judge


def _settings(config: RunConfig, device: str) -> str:
    """Those that the features and the fit depend on, besides the weights."""
    settings = without_paths(config.nested())
    values = [settings[name] for name in ("model", "input", "head")]
    more = [DECODER, config.cache.dtype, config.cache.runtime, config.train.precision, str(choose_device(device))]
    return json.dumps([*values, *more], sort_keys=True, default=str)


def kept_bursts(outputs: ModelOutputs, run: Path) -> np.ndarray:
    """[N] the first image of each one's burst. To find them takes seconds for 100,000."""
    file = RunFolder(run).outputs / "bursts.npz"
    kept = load_kept(file, outputs.key) if outputs.key else None
    if kept is not None:
        return kept["leaders"]
    leaders = burst_leaders(UnitFeatures(outputs)).numpy()
    if outputs.key:
        keep(file, outputs.key, leaders=leaders)
    return leaders


def kept_inputs(outputs: ModelOutputs, run: Path, model: Presence) -> Tensor:
    """[N, K] what lessons are about (`Presence.inputs`). To make them takes seconds for 100,000, so a review that has
    decisions would open late without them."""
    file = RunFolder(run).outputs / "inputs.npz"
    key = key_of(outputs.key, *(part.cpu().numpy().tobytes() for part in (model.mean, model.directions)))
    kept = load_kept(file, key) if outputs.key else None
    if kept is not None:
        return torch.from_numpy(kept["inputs"])
    inputs = torch.empty(len(outputs), model.directions.shape[1])
    for rows in outputs.chunks():
        inputs[torch.from_numpy(rows)] = model.inputs(outputs.unit_features(rows))
    if outputs.key:
        keep(file, key, inputs=inputs.numpy())
    return inputs

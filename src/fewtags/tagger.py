"""The Python API, in the style of scikit-learn: fit, predict, predict_proba, score, save, load."""

from __future__ import annotations

import importlib.util
import inspect
import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import torch

from fewtags.config import DEFAULT_METHOD, RunConfig, flat, load_config, merge, nested
from fewtags.data.annotations import Annotations
from fewtags.data.image_files import find_images
from fewtags.data.inputs import (
    Images,
    Picture,
    annotations_of,
    image_column,
    is_loader,
    is_tensor,
    listed,
    loaded,
)
from fewtags.data.prepare import measurable, split_data
from fewtags.engine.model_outputs import model_outputs
from fewtags.engine.own_images import OwnImages
from fewtags.engine.prediction import pooled_features, predict_files, worth_looking_up
from fewtags.engine.predictions import given_tags, name_of
from fewtags.engine.record import cache_of, load_run_config, load_run_data
from fewtags.engine.run_folder import RunFolder
from fewtags.engine.run_log import read_rows
from fewtags.engine.training import train
from fewtags.errors import MissingExtra, UserError, did_you_mean
from fewtags.export.onnx_file import export_model
from fewtags.labels import ABSENT, PRESENT, UNKNOWN
from fewtags.loggers import Logger, opened
from fewtags.metrics import mean_average_precision
from fewtags.models import hub
from fewtags.models.build import DEFAULT_BACKBONE
from fewtags.models.closed_form import NAME_SHARPNESS, ClosedFormHead
from fewtags.models.model_card import UNKNOWN_LICENSE
from fewtags.models.phrases import Phrases, classes_of
from fewtags.models.saved import SavedModel, load_model
from fewtags.presence.new_tag import Archive, Forecast, Learned
from fewtags.presence.ridge import unit_length
from fewtags.presence.rows import ClassShares
from fewtags.train_settings import CacheConfig

Output = Literal["tags", "indicator"]
OUTPUTS = get_args(Output)
Thresholds = float | np.ndarray | None


class Tagger:
    """A multi-label image tagger for partly known tags.

    Parameters are stored as given; what `fit` learns ends in an underscore: `classes_`, `thresholds_`,
    `history_`, `config_`. Any setting of a run can be passed in `settings`, as {"train.epochs": 5} or as on the command
    line, ["train.epochs=5", "input.size=448"].

    scikit-learn's tools pass only images and labels, so what else they need is a parameter: `classes` names the columns
    of a label matrix, and `output="indicator"` makes `predict` return such a matrix, which its scorers compare.
    `loggers` are names ("tensorboard", "mlflow", "wandb") or objects that follow the training (fewtags.loggers.Logger).

    Examples:
        >>> tagger = Tagger().fit("photos/", tags="tags.csv")
        >>> tagger.predict(["photos/a.jpg"])
        [['beach', 'dog']]
    """

    def __init__(
        self,
        method: str = DEFAULT_METHOD,
        backbone: str = DEFAULT_BACKBONE,
        *,
        weights: str | Path | None = None,
        pretrained: bool = True,
        epochs: int | None = None,
        settings: Mapping[str, Any] | Iterable[str] = (),
        classes: Sequence[str] | None = None,
        output: Output = "tags",
        loggers: Iterable[str | Logger] = (),
        seed: int = 0,
        device: str = "auto",
        out: str | Path | None = None,
        verbose: bool = False,
    ):
        self.method = method
        self.backbone = backbone
        self.weights = weights
        self.pretrained = pretrained
        self.epochs = epochs
        self.settings = settings
        self.classes = classes
        self.output = output
        self.loggers = loggers
        self.seed = seed
        self.device = device
        self.out = out
        self.verbose = verbose

    # --- scikit-learn's conventions ---

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Tagger:
        for name, value in params.items():
            if name not in self.get_params():
                raise UserError(f"Tagger has no parameter '{name}'; it has: {', '.join(self.get_params())}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The call that makes an equal tagger: method, backbone, and every parameter that is not the default."""
        usual = {name: parameter.default for name, parameter in inspect.signature(type(self)).parameters.items()}
        shown = {
            name: value
            for name, value in self.get_params().items()
            if name in ("method", "backbone") or not (value is usual[name] or value == usual[name])
        }
        return f"Tagger({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_saved")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools ask before they use an estimator.

        A tagger that returns tag lists is no classifier to them: they would refuse lists as labels.
        """
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        classifier = self.output == "indicator"
        return Tags(
            estimator_type="classifier" if classifier else None,
            target_tags=TargetTags(required=False, two_d_labels=True, multi_output=True, single_output=False),
            classifier_tags=ClassifierTags(multi_class=False, multi_label=True) if classifier else None,
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
            no_validation=True,
        )

    # --- fitting ---

    def fit(self, images: Images, tags: Any = None, **options: Any) -> Tagger:
        """Learn from a folder or file in any known layout, a folder and a tag file, or images with their tags.

        Images may be paths, PIL images, arrays [H, W, 3] of bytes, tensors [N, 3, H, W] of bytes or from 0 to 1, a
        DataLoader of such tensors (and of labels), or a data frame with the columns 'image' and 'tags' (and 'split').
        `tags` may be a file, a list with the tags of each image as a list or as comma-separated
        text (unlisted tags are unknown), a matrix of 1 present, 0 unknown, -1 absent with `classes=[...]`, or a
        data frame with one column per class. `complete=True` says that unlisted tags are absent. Other `options`
        go to the reader.
        """
        config, options = self._config(), {"classes": self.classes, **options}
        folder = Path(self.out) if self.out is not None else Path(tempfile.mkdtemp(prefix="fewtags-"))
        try:
            with (
                opened(self.loggers) as loggers,
                annotations_of(*one_by_one(images, tags), pictures=folder / "pictures", **options) as annotations,
            ):
                data = split_data(annotations, config.data, config.seed)
                train(config, folder, data=data, quiet=not self.verbose, loggers=loggers)
            self.history_ = read_rows(RunFolder(folder).metrics)
            self._use(load_model(folder), config.cache)
        finally:
            if self.out is None:
                shutil.rmtree(folder, ignore_errors=True)
        return self

    def _config(self) -> RunConfig:
        given = {
            "method.name": self.method, "model.backbone": self.backbone, "model.pretrained": self.pretrained,
            "model.weights": self.weights, "train.epochs": self.epochs, "seed": self.seed, "train.device": self.device,
        }  # fmt: skip
        if isinstance(self.settings, Mapping):
            return load_config(None, (), **merge(nested(given), nested(self.settings)))
        overrides = [self.settings] if isinstance(self.settings, str) else self.settings
        return load_config(None, overrides, **nested(given))

    def _use(self, saved: SavedModel, cache: CacheConfig) -> None:
        self._saved, self._cache = saved, cache
        self.classes_ = np.array(saved.categories)
        self.thresholds_ = saved.thresholds
        self.config_ = dict(saved.training)

    # --- prediction ---

    def predict_proba(self, images: Images) -> np.ndarray:
        """[N, C] probabilities, columns as in `classes_`. Images may be anything `fit` accepts. Of many image files the
        features are kept in the feature store, and taken from there (`cache.enabled=false` does without)."""
        saved, files = self._fitted(), every_image(images)
        cache = self._cache if worth_looking_up(files) else None
        rows = []
        for prediction in predict_files(saved, files, device=self.device, cache=cache):
            if prediction.probabilities is None:
                raise UserError(f"{prediction.problem} Remove it, or use `fewtags predict`, which skips it.")
            rows.append(prediction.probabilities)
        return np.stack(rows)

    @overload
    def predict(
        self,
        images: Images,
        *,
        threshold: Thresholds = ...,
        top: int | None = ...,
        output: Literal["tags"] | None = ...,
    ) -> list[list[str]]: ...

    @overload
    def predict(
        self, images: Images, *, threshold: Thresholds = ..., top: int | None = ..., output: Literal["indicator"]
    ) -> np.ndarray: ...

    def predict(
        self, images: Images, *, threshold: Thresholds = None, top: int | None = None, output: Output | None = None
    ) -> Any:
        """The tags of each image, most probable first: those with at least the probability `threshold`, at most `top`
        of them.

        The threshold is one for all categories or one per category (default: `thresholds_`). `output="indicator"`
        returns a matrix [N, C] of 1 and 0 instead, columns as in `classes_` (default: the parameter `output`).
        """
        output = self.output if output is None else output
        if output not in OUTPUTS:
            raise UserError(f"output={output!r} should be 'tags' or 'indicator'.")
        probabilities = self.predict_proba(images)
        limits = self.thresholds_ if threshold is None else np.asarray(threshold, dtype=float)
        if limits.shape not in ((), self.classes_.shape):
            raise UserError(f"threshold= should be one number, or one per class ({len(self.classes_)} classes).")
        if threshold is not None and not ((limits >= 0) & (limits <= 1)).all():
            raise UserError(f"threshold={threshold} should be a probability: from 0 to 1.")
        if top is not None and top < 1:
            raise UserError(f"top={top} should be 1 or more.")
        limits = np.broadcast_to(limits, self.classes_.shape)
        saved = self._fitted()
        tags = [list(given_tags(row, saved.categories, limits, saved.tree))[:top] for row in probabilities]
        if output == "tags":
            return tags
        column = {name: c for c, name in enumerate(saved.categories)}
        indicator = np.zeros(probabilities.shape, dtype=np.int64)
        for row, chosen in zip(indicator, tags, strict=True):
            row[[column[tag] for tag in chosen]] = 1
        return indicator

    def score(self, images: Images, tags: Any = None, **options: Any) -> float:
        """mAP from 0 to 1. If some labels are unknown, only the known ones count, or, if no absence is known, unknown
        counts as absent."""
        categories = self._fitted().categories
        images, tags = one_by_one(images, tags)
        if isinstance(tags, np.ndarray) and tags.ndim == 2 and tags.shape[1] == len(categories):
            options = {"classes": categories, **options}  # columns as in `classes_`
        with annotations_of(images, tags, **options) as annotations:
            missing = set(annotations.categories) - set(categories)
            if missing:
                known = ", ".join(self.classes_[:5])
                raise UserError(f"The tagger does not know '{sorted(missing)[0]}'; it knows: {known}, …")
            columns = [categories.index(name) for name in annotations.categories]
            truth, mask = measurable(annotations.labels)
            return mean_average_precision(self.predict_proba(annotations)[:, columns], truth, mask=mask)

    def _fitted(self) -> SavedModel:
        if not hasattr(self, "_saved"):
            raise not_fitted("This Tagger is not fitted yet; call fit(...) first, or Tagger.load(folder).")
        return self._saved

    def to_fiftyone(self) -> Any:
        """The tagger as one of FiftyOne's models, for `dataset.apply_model` and `compute_embeddings` (extra: fiftyone).

        It does not follow later changes of the tagger's thresholds or classes.
        """
        saved = self._fitted()
        try:
            from fewtags.export.fiftyone_model import TaggerModel
        except ImportError:
            raise MissingExtra("A FiftyOne model", "fiftyone") from None
        return TaggerModel(saved.categories, self.thresholds_, self.predict_proba, self.features)

    # --- changing labels (method "instant") ---

    @overload
    def features(self, images: Images, *, return_paths: Literal[False] = False) -> np.ndarray: ...

    @overload
    def features(self, images: Images, *, return_paths: Literal[True]) -> tuple[np.ndarray, list[str]]: ...

    def features(self, images: Images, *, return_paths: bool = False) -> Any:
        """[N, D] unit-length features, for `relabel` and `rerank`; with `return_paths` also the paths of their images.

        Unreadable images are skipped with a warning, so row 5 may not be image 5: the paths say which is which.
        """
        chosen, unreadable = every_image(images), dict[int, str]()
        saved = self._fitted()
        features = pooled_features(saved, chosen, device=self.device, unreadable=unreadable, cache=self._cache)
        for problem in unreadable.values():
            warnings.warn(f"Skipped: {problem}", stacklevel=2)
        kept = [row for row in range(len(chosen)) if row not in unreadable]
        if not kept:
            raise UserError(f"None of the images could be read: {next(iter(unreadable.values()))}")
        rows = unit_length(features[kept]).numpy()
        return (rows, [name_of(chosen[row], row) for row in kept]) if return_paths else rows

    def search(
        self, images: Images, *, like: Any = None, text: str | None = None, number: int = 20
    ) -> list[tuple[int, float]]:
        """Rows of `images` that look like the pictures `like`, or that a phrase describes, best first, with their
        similarity. Images may be features of `features`, so that they are looked at once."""
        if (like is None) == (text is None):
            raise UserError("Search by pictures (like=[...]) or by a phrase (text='lighthouse').")
        rows = self._looked_at(images)
        if like is not None:
            centre = rows.mean(0)
            wanted = unit_length(unit_length(self._looked_at(like) - centre).mean(0))
            scores = unit_length(rows - centre) @ wanted
        else:
            found = self._phrases(rows).find(str(text))
            if found.scores is None:
                raise UserError(
                    f"'{text}' cannot be searched for: {found.sentence}. Search by pictures instead (like=[...])."
                )
            scores = found.scores.exp()
        best = scores.topk(min(number, len(scores)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def add_tag(self, name: str, images: Images | None = None, *, examples: Any) -> NewTag:
        """A tag that nobody had, from pictures that have it: ranks `images` or their features, learns from answers.

        tag = tagger.add_tag("lighthouse", examples=["tower.jpg"])
        row = tag.next()[0]                    # what to ask about: tag.images[row]
        tag.answer(row, True)
        tag.probabilities(); tag.forecast()    # what the next 50 answers find, what is missing, is it enough

        Without `images` it ranks those of the run that the tagger was loaded from or fitted into (`out`).
        """
        if name in self._fitted().categories:
            raise UserError(f"There is a tag '{name}' already; use `relabel` to teach it.")
        if images is None:
            features, paths = self._of_the_run()
        else:
            features, paths = self._looked_at(images), None
        looks = self._looked_at(examples)
        return NewTag(name, features, looks, paths, shares=self._phrases(torch.cat([features, looks])).shares())

    def _of_the_run(self) -> tuple[torch.Tensor, list[str]]:
        """[N, D] unit-length features of the run's own images, and their paths. Unreadable ones are left out."""
        run = self.weights if self.out is None else self.out
        if run is None or not RunFolder(Path(run)).is_run:
            raise UserError(
                "Which images? This tagger belongs to no run, so pass them: add_tag(name, images, examples=[...])."
            )
        annotations = OwnImages.of(load_run_data(Path(run))).annotations
        outputs = model_outputs(self._fitted(), annotations, config=load_run_config(Path(run)), quiet=not self.verbose)
        rows = np.flatnonzero(outputs.readable)
        features = torch.cat([outputs.unit_features(some) for some in outputs.chunks(rows)])
        return features, [str(annotations.path(row)) for row in rows.tolist()]

    def _looked_at(self, images: Any) -> torch.Tensor:
        """[N, D] of unit length, of pictures or of what `features` returned."""
        if isinstance(images, np.ndarray) and images.dtype.kind == "f" and images.ndim == 2:
            return unit_length(self._features(images, ndim=2))
        return unit_length(torch.from_numpy(self.features(images)))

    def _phrases(self, unit_features: torch.Tensor) -> Phrases:
        head = self._fitted().classifier.head
        names = head.names if isinstance(head, ClosedFormHead) else None
        known = names is not None and not bool(names.unit_length)
        length = float(head.feature_norm) if isinstance(head, ClosedFormHead) else 1.0
        return Phrases(
            lambda: classes_of(names.weight.cpu(), names.bias.cpu()) if known and names is not None else None,
            lambda: NAME_SHARPNESS * length,
            unit_features,
        )

    def relabel(self, feature: np.ndarray, tag: str, label: int) -> None:
        """Learn immediately that the image with this feature has the `label` 1, 0 (unknown) or -1 for `tag`.

        Nobody had labelled it before, so this also says how likely other unknown tags are present. The time does not
        depend on the number of images. What was said is remembered, so repeating the same label changes nothing, and 0
        takes it back.
        """
        if label not in (PRESENT, UNKNOWN, ABSENT):
            raise UserError(f"The label of '{tag}' should be 1 (present), 0 (unknown) or -1 (absent); it is {label!r}.")
        head, category = self._closed_form(), self._category(tag)
        head.relabel(self._features(feature, ndim=1)[None], torch.tensor([category]), torch.tensor([int(label)]))

    def rerank(self, tag: str, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of `features`, most likely for `tag` first, and their probabilities in that order."""
        head, category = self._closed_form(), self._category(tag)
        rows = self._features(features, ndim=2).to(head.feature_norm.device)  # a GPU, if it looked at images there
        odds = head.log_odds(rows, category)
        order = odds.argsort(descending=True)
        return order.cpu().numpy(), odds[order].sigmoid().cpu().numpy()

    def _features(self, features: Any, ndim: int) -> torch.Tensor:
        """Features as returned by `Tagger.features`: one [D] or many [N, D]."""
        array = np.asarray(features)
        size = self._fitted().classifier.neck.num_channels
        if array.dtype.kind != "f" or array.ndim != ndim or array.shape[-1] != size:
            wanted, example = ("", "features[0]") if ndim == 1 else ("N, ", "features")
            raise UserError(
                f"Features of this tagger have the shape [{wanted}{size}], such as {example} of features = "
                f"tagger.features(...); these are {array.dtype} of shape {list(array.shape)}."
            )
        if not np.isfinite(array).all():
            raise UserError("Some of the features are not finite.")
        return torch.from_numpy(array.astype(np.float32, copy=False))

    def _closed_form(self) -> ClosedFormHead:
        head = self._fitted().classifier.head
        if not isinstance(head, ClosedFormHead) or head.residual is not None:
            raise UserError(
                f"Only the method 'instant' can learn label by label; this tagger was fitted with '{self.method}'."
            )
        return head

    def _category(self, tag: str) -> int:
        names = self._fitted().categories
        if tag not in names:
            raise UserError(f"The tagger does not know '{tag}'; {did_you_mean(tag, names)}")
        return names.index(tag)

    # --- saving and loading ---

    def save(self, folder: str | Path) -> None:
        """Write config.json, labels.json, model.safetensors and README.md, a model card."""
        self._fitted().save(Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Tagger:
        """A tagger from the folder that `save` wrote, or from a finished run.

        It has the settings it was fitted with. `fit` starts over with them, from this model's backbone.
        """
        saved = load_model(folder)
        settings = changed_settings(saved.training)
        tagger = cls(
            saved.method,
            saved.model.backbone,
            weights=Path(folder).absolute(),
            epochs=settings.pop("train.epochs", None),
            settings=[f"{name}={json.dumps(value)}" for name, value in settings.items()],
            seed=int(saved.training.get("seed", 0)),
        )
        tagger._use(saved, cache_of(Path(folder)))
        return tagger

    def push_to_hub(
        self,
        repo: str,
        *,
        private: bool = True,
        token: str | None = None,
        revision: str | None = None,
        endpoint: str | None = None,
        message: str = "Upload a fewtags model",
        license: str = UNKNOWN_LICENSE,
        onnx: bool | None = None,
    ) -> str:
        """Upload what `save` writes to the Hugging Face Hub, and `model.onnx`, and return its address.

        The repository `owner/name` is made if it is not there, visible to its owner only unless `private=False`.
        `endpoint` is the address of another server that speaks the hub's language. `license` is one of the hub's
        identifiers, such as "apache-2.0". `onnx` says if the ONNX file is made (default: if the extra is installed).
        """
        if onnx is None:
            onnx = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
        with tempfile.TemporaryDirectory(prefix="fewtags-") as folder:
            self._fitted().save(Path(folder), license=license)
            if onnx:
                export_model(self._fitted(), Path(folder) / hub.ONNX)
            return hub.upload(
                Path(folder), repo, private=private, token=token, revision=revision, endpoint=endpoint, message=message
            )

    @classmethod
    def from_hub(
        cls,
        repo: str,
        *,
        token: str | None = None,
        revision: str | None = None,
        endpoint: str | None = None,
        cache_dir: str | Path | None = None,
    ) -> Tagger:
        """A tagger from the repository `owner/name` of the Hugging Face Hub; it is downloaded once."""
        return cls.load(hub.download(repo, token=token, revision=revision, endpoint=endpoint, cache_dir=cache_dir))


GIVEN_ELSEWHERE = (  # a parameter of Tagger, passed with the data, or specific to one machine
    "data.source", "data.tags", "data.format", "data.options", "cache.folder", "words.source", "method.name", "seed",
    "model.backbone", "model.pretrained", "model.weights", "train.device",
)  # fmt: skip


def changed_settings(training: Mapping[str, Any]) -> dict[str, Any]:
    """The settings a tagger was trained with that differ from its method's defaults, by dotted name."""
    method = training.get("method", {})
    try:
        usual = flat(load_config(method={"name": method.get("name"), "profile": method.get("profile")}).nested())
    except UserError:  # an unknown method
        usual = {}
    usual |= {"method.profile": "default"}
    record = flat(training)
    changed = {
        name: value
        for name, value in record.items()
        if (name not in usual or usual[name] != value) and not name.startswith(GIVEN_ELSEWHERE)
    }
    from_scratch = not record.get("model.pretrained", True) and not record.get("model.weights")
    if from_scratch and record.get("model.train_from") == "auto":
        changed["model.train_from"] = "all"  # as it was, although it now has weights to start from
    return changed


def not_fitted(message: str) -> UserError:
    """For scikit-learn's tools, which catch its own error, an error of both kinds."""
    if "sklearn" not in sys.modules:
        return UserError(message)
    from sklearn.exceptions import NotFittedError

    return type("NotFittedError", (UserError, NotFittedError), {})(message)


class NewTag:
    """A tag that nobody had, of some images; see `Tagger.add_tag`."""

    def __init__(
        self,
        name: str,
        unit_features: torch.Tensor,
        examples: torch.Tensor,
        images: Sequence[str] | None = None,
        *,
        shares: ClassShares | None = None,  # of images and examples
    ):
        self.name = name
        self.images = images  # paths by row, if they are the run's own
        self._images = len(unit_features)
        self._archive = Archive.of(torch.cat([unit_features, examples]), shares)
        self._examples = list(range(self._images, self._images + len(examples)))
        self.answers: dict[int, bool] = {}  # row -> present

    def answer(self, row: int, present: bool) -> None:
        if not 0 <= row < self._images:
            raise UserError(f"There is no image {row}; the tag was made for {self._images}.")
        self.answers[int(row)] = bool(present)

    def next(self, number: int = 20) -> list[int]:
        """Rows to ask about: likely ones, and among them those of which little is known."""
        learned = self._learned()
        return learned.first(self._scores(learned), self._open())[:number].tolist()

    def probabilities(self) -> np.ndarray:
        """[N] of presence."""
        learned = self._learned()
        return learned.curve(self._scores(learned))[: self._images].sigmoid().numpy()

    def threshold(self) -> float:
        """The lowest probability at which nine of ten are expected to be right; above 1 if nowhere."""
        learned = self._learned()
        return learned.threshold(self._scores(learned)).probability

    def forecast(self) -> Forecast:
        learned = self._learned()
        return learned.forecast(self._scores(learned), self._open(), sum(self.answers.values()))

    def __repr__(self) -> str:
        return f"NewTag({self.name!r}, {self._images} images, {len(self.answers)} answers)"

    def _learned(self) -> Learned:
        rows = [*self._examples, *self.answers]
        present = [True] * len(self._examples) + list(self.answers.values())
        return self._archive.learn(np.array(rows), np.array(present), examples=self._examples)

    def _scores(self, learned: Learned) -> torch.Tensor:
        return learned.scores(self._archive.features)

    def _open(self) -> np.ndarray:
        return np.setdiff1d(np.arange(self._images), list(self.answers))


def one_by_one(images: Images, tags: Any) -> tuple[Images, Any]:
    """Images and their tags, both as they are, but for a folder whose tags are a list or a matrix: its images in sorted
    order; and for a DataLoader: what is in it."""
    if is_loader(images):
        images, labels = loaded(images)
        return images, labels if tags is None else tags
    if is_tensor(tags):
        tags = tags.detach().cpu().numpy()
    read_together = tags is None or isinstance(tags, str | Path) or image_column(tags)
    return images if read_together or not isinstance(images, str | Path) else find_images([images]), tags


def every_image(images: Images) -> list[Path | Picture]:
    """Images as a list; for a folder, all images below it."""
    if isinstance(images, Annotations):
        return listed(images)
    chosen = listed(images)
    if all(isinstance(image, Path) for image in chosen):
        return list(find_images(image for image in chosen if isinstance(image, Path)))
    return chosen

"""Any timm model as a chain of named stages that ends in a feature map; the first stages may be frozen.

Frozen stages stay in eval mode (their batch-norm statistics do not move) and run without gradient. Because the chain is
explicit, it can also be split: the frozen part's maps can be computed once, cached, and fed to the rest.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fewtags.errors import RunFailed, UserError, did_you_mean
from fewtags.models import hub, quick_timm
from fewtags.models.tensor_files import first_line, read_tensors

if TYPE_CHECKING:
    from fewtags.models.clip import TextTower

NOT_FEATURES = ("global_pool", "head_drop", "fc", "classifier", "head", "last_linear", "fc_norm")


@dataclass(frozen=True)
class ClassHead:
    """The classifier that timm's model was pretrained with: logits = average-pooled map @ weight.T + bias."""

    weight: Tensor  # [K, D]
    bias: Tensor  # [K]
    synsets: tuple[str, ...]  # WordNet ids of the K classes, such as "n02084071"


class Backbone(nn.Module):
    """Images [B, 3, H, W], as bytes or already normalised, -> feature map [B, D, h, w]."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self, stages: dict[str, nn.Module], num_channels: int, mean: tuple[float, ...], std: tuple[float, ...]
    ):
        super().__init__()
        self.stages = nn.ModuleDict({name.replace(".", "_"): stage for name, stage in stages.items()})
        self.stage_names = list(stages)
        self.num_channels = num_channels
        self.mean, self.std = mean, std
        self.register_buffer("pixel_mean", 255 * torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_std", 255 * torch.tensor(std).view(3, 1, 1), persistent=False)
        self.variant = ""  # how it differs from timm's model apart from the weights
        self.num_frozen = 0
        self.class_head: ClassHead | TextTower | None = None  # not part of the state: a model saves what it uses of it

    def freeze_before(self, train_from: str) -> None:
        """Freeze every stage before the named one; "all" freezes nothing and "head" everything."""
        choices = ["all", "head", *self.stage_names]
        if train_from not in choices:
            raise UserError(f"model.train_from is '{train_from}'; {did_you_mean(train_from, choices)}")
        places = {"all": 0, "head": len(self.stage_names)}
        self.num_frozen = places[train_from] if train_from in places else self.stage_names.index(train_from)
        for stage in self._frozen():
            stage.requires_grad_(False)
        self.train(self.training)

    def all_frozen(self) -> Backbone:
        """The same stages, all frozen, for passes over many images."""
        whole = copy.copy(self)
        whole.num_frozen = len(self.stages)
        return whole

    def _frozen(self) -> list[nn.Module]:
        return list(self.stages.values())[: self.num_frozen]

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode)
        for stage in self._frozen():
            stage.eval()
        return self

    def forward_frozen(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            if images.dtype == torch.uint8:
                images = (images - self.pixel_mean) / self.pixel_std
            for stage in self._frozen():
                images = stage(images)
        return images

    def forward_trainable(self, maps: Tensor) -> Tensor:
        for stage in list(self.stages.values())[self.num_frozen :]:
            maps = stage(maps)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_trainable(self.forward_frozen(images))


def create_backbone(
    name: str,
    *,
    pretrained: bool = True,
    weights: str | Path | None = None,
    stride_in_1x1: bool = False,
    output_stride: int | None = None,
    input_size: int | None = None,
    keep_classifier: bool = False,
) -> Backbone:
    """A timm model by name: weights from a local file, else from timm's hub if `pretrained`, else random.

    Models with a fixed image size (transformers with position embeddings) are resized to `input_size`. With
    `keep_classifier` the backbone gets the `class_head` of its weights, if they include one. Names
    starting with "open_clip/" are open_clip models (models/clip.py).
    """
    if name.startswith("open_clip/"):
        from fewtags.models.clip import create_clip_backbone

        return create_clip_backbone(
            name, pretrained=pretrained, weights=weights, input_size=input_size, keep_text=keep_classifier
        )
    if not quick_timm.timm.is_model(name):
        raise UserError(f"There is no timm backbone '{name}'; {_similar_backbones(name)}")
    model = _create(name, pretrained and weights is None, output_stride)
    if stride_in_1x1:
        move_stride_to_1x1(model, name)
    has_classifier = load_weights(model, Path(weights)) if weights is not None else pretrained
    if input_size is not None:
        fit_to_size(model, name, input_size)
    config: Any = model.pretrained_cfg
    backbone = Backbone(stages_of(model), num_features(model), tuple(config["mean"]), tuple(config["std"]))
    backbone.variant = f"{'stride in 1x1 ' * stride_in_1x1}{f'output stride {output_stride}' if output_stride else ''}"
    if keep_classifier and has_classifier:
        backbone.class_head = class_head_of(model, backbone, input_size)
    return backbone


@torch.no_grad()
def class_head_of(model: Any, backbone: Backbone, input_size: int | None = None) -> ClassHead | None:
    """timm's classifier, if its classes are ImageNet's and it is one linear layer on the average-pooled map.

    As with the stages, this is checked on a small image: other models have norms, convolutions or class tokens in
    between.
    """
    linear, subset = model.get_classifier(), quick_timm.infer_imagenet_subset(model)
    if not isinstance(linear, nn.Linear) or subset is None:
        return None
    one_stage = len(backbone.stage_names) == 1  # then the size may be fixed
    side = (input_size or model.pretrained_cfg["input_size"][-1]) if one_stage else 64
    with _in_eval(model), contextlib.suppress(Exception):
        image = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
        if torch.allclose(linear(backbone(image).mean((2, 3))), model(image), rtol=1e-3, atol=1e-4):
            bias = linear.bias if linear.bias is not None else torch.zeros(linear.out_features)
            synsets = tuple(quick_timm.ImageNetInfo(subset).label_names())
            return ClassHead(linear.weight.detach().clone(), bias.detach().clone(), synsets)
    return None


def fit_to_size(model: Any, name: str, size: int) -> None:
    if not hasattr(model, "set_input_size") or tuple(model.pretrained_cfg["input_size"][1:]) == (size, size):
        return
    try:
        model.set_input_size(img_size=(size, size))
    except Exception as error:
        raise UserError(f"Backbone '{name}' cannot be used at input.size={size} ({first_line(error)}).") from error


def num_features(model: Any) -> int:
    """Channels of the feature map, before timm's own pooling and classifier."""
    return int(model.num_features)


def _similar_backbones(name: str) -> str:
    hint = did_you_mean(name, quick_timm.timm.list_models())
    return hint if hint.startswith("did") else "`python -c 'import timm; print(timm.list_models())'` lists them."


def _create(name: str, pretrained: bool, output_stride: int | None = None) -> nn.Module:
    more: dict[str, Any] = {} if output_stride is None else {"output_stride": output_stride}
    if more or not pretrained:
        try:
            plain = quick_timm.timm.create_model(name, pretrained=False, **more)
        except (TypeError, AssertionError) as error:
            raise UserError(
                f"Backbone '{name}' does not support model.output_stride={output_stride}; remove it."
            ) from error
        if not pretrained:
            return plain
    reason = ""
    try:
        with hub.cache_if_unreachable() as reason:
            return quick_timm.timm.create_model(name, pretrained=True, **more)
    except Exception as error:  # the hub client raises many kinds of exceptions
        raise RunFailed(without_weights(name, reason or first_line(error))) from error


def check_weights_are_near(name: str) -> None:
    """Raises if timm's weights are to be downloaded and cannot be: before the labels of a million photos are read."""
    if not quick_timm.timm.is_model(name):
        return  # open_clip's, or no model
    config = quick_timm.timm.get_pretrained_cfg(name, allow_unregistered=True)
    on_hub = config is not None and (config.hf_hub_id or "").startswith("timm/")
    if on_hub and timm_weights(name) not in cached_backbones() and (reason := hub.unreachable()):
        raise RunFailed(without_weights(name, reason))


def without_weights(name: str, reason: str) -> str:
    """What to do where the weights cannot be downloaded, the best way first."""
    cached = cached_backbones()
    here = f" Already downloaded: {', '.join(cached)}." if cached else ""
    return (
        f"The pretrained weights of '{name}' could not be fetched ({reason}). Ways out, the best first: "
        "(1) with a network, run the same command once; later runs need none. "
        f"(2) Download model.safetensors of timm/{timm_weights(name)} elsewhere and pass it with --weights FILE. "
        "(3) Copy the Hugging Face cache of a machine that has it, and set HF_HOME to that folder. "
        f"(4) Another backbone that is in the cache, with --backbone NAME.{here} "
        "(5) model.pretrained=false starts from random weights: only for many labels and a GPU. "
        "To see fewtags at work without any download: `fewtags demo`."
    )


def timm_weights(name: str) -> str:
    """The name with its tag, as timm's hub has it."""
    config = quick_timm.timm.get_pretrained_cfg(name, allow_unregistered=True)
    return name if "." in name or config is None or not config.tag else f"{name}.{config.tag}"


def cached_backbones() -> list[str]:
    """timm's models whose weights are in the Hugging Face cache of this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    prefix = "models--timm--"
    files = Path(HF_HUB_CACHE).glob(f"{prefix}*/snapshots/*/*")
    folders = sorted({file.parents[2].name for file in files if file.suffix in (".safetensors", ".bin")})
    return [folder.removeprefix(prefix) for folder in folders]


def load_weights(model: nn.Module, file: Path) -> bool:
    """Load a .safetensors file or a state dict (read without executing pickled code) with timm's names.

    The classifier may be missing or different; returns whether it was loaded.
    """
    if not file.is_file():
        raise UserError(f"The weights file {file} does not exist.")
    try:
        state = load_file(file) if file.suffix == ".safetensors" else read_tensors(file)
    except Exception as error:
        raise UserError(f"{file} is not a readable weights file ({first_line(error)}).") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{file} should contain a state dict (names and tensors).")
    own = model.state_dict()
    classifier = {key: value for key, value in own.items() if key.split(".")[0] in NOT_FEATURES}
    own = {key: value for key, value in own.items() if key not in classifier and "num_batches_tracked" not in key}
    state = {key.removeprefix("module."): value.float() for key, value in state.items()}
    missing = [key for key in own if key not in state]
    wrong = [key for key in own if key in state and state[key].shape != own[key].shape]
    if missing or wrong:
        key, what = (missing[0], "lacks") if missing else (wrong[0], "has a different shape for")
        raise UserError(
            f"{file} does not match the backbone: it {what} '{key}' ({len(missing) + len(wrong)} such tensors)."
        )
    has_classifier = all(key in state and state[key].shape == value.shape for key, value in classifier.items())
    model.load_state_dict({key: state[key] for key in (own | classifier if has_classifier else own)}, strict=False)
    return has_classifier and bool(classifier)


def move_stride_to_1x1(model: nn.Module, name: str) -> None:
    """Move the stride of ResNet's bottlenecks to the first 1x1 convolution, as in Keras and Caffe weights."""
    moved = 0
    for block in model.modules():
        conv1, conv2 = getattr(block, "conv1", None), getattr(block, "conv2", None)
        if (
            isinstance(conv1, nn.Conv2d)
            and isinstance(conv2, nn.Conv2d)
            and conv1.kernel_size == (1, 1) != conv2.stride
        ):
            conv1.stride, conv2.stride = conv2.stride, (1, 1)
            moved += 1
    if not moved:
        raise UserError(f"model.stride_in_1x1 is for ResNets with bottlenecks; '{name}' has none with a stride.")


class _Features(nn.Module):
    """A model that is not a chain of stages, as one stage; tokens are arranged as a map."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        maps = self.model.forward_features(images)
        if maps.ndim == 3:  # [B, tokens, D], class and register tokens first
            tokens = maps[:, getattr(self.model, "num_prefix_tokens", 0) :]
            side = int(tokens.shape[1] ** 0.5)
            return tokens.transpose(1, 2).reshape(len(maps), -1, side, tokens.shape[1] // side)
        if maps.shape[-1] == self.model.num_features != maps.shape[1]:  # [B, h, w, D]
            return maps.permute(0, 3, 1, 2)
        return maps


def stages_of(model: nn.Module) -> dict[str, nn.Module]:
    """The model's layers up to the feature map, in order, named as timm names them ("layer4", "blocks.5").

    Most convolutional models are a plain chain of their children. Whether this one is, is checked on a small image;
    if it is not (transformers add position embeddings), it stays one stage, "features".
    """
    chain = {}
    for name, child in model.named_children():
        if name in NOT_FEATURES:
            break
        if isinstance(child, nn.Sequential) and name in ("blocks", "stages", "features"):
            chain.update({f"{name}.{inner}": stage for inner, stage in child.named_children()})
        else:
            chain[name] = child
    return chain if _is_chain(model, chain) else {"features": _Features(model)}


@torch.no_grad()
def _is_chain(model: Any, chain: dict[str, nn.Module]) -> bool:
    with _in_eval(model), contextlib.suppress(Exception):  # a layer with unexpected input may raise anything
        image = maps = torch.rand(1, 3, 64, 64)
        expected = model.forward_features(image)
        for stage in chain.values():
            maps = stage(maps)
        # Only channels-first maps: the heads expect [B, D, h, w].
        return maps.ndim == 4 and maps.shape[1] == model.num_features and torch.equal(maps, expected)
    return False


@contextlib.contextmanager
def _in_eval(model: nn.Module) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)

"""The names of the categories as classes of an ImageNet classifier, and the score they give an image."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.data import ImageNetInfo
from torch import Tensor

from fewtags.models.backbones import ClassHead, create_backbone
from fewtags.models.names import Match, NameScorer, find_names, match_names
from fewtags.models.nouns import nouns

WORDNET = Path("/usr/share/wordnet")
COCO_BELOW = 54  # of COCO's 80 names have ImageNet-1k classes at or below one of their senses


@cache
def synsets(subset: str = "imagenet-1k") -> tuple[str, ...]:
    return tuple(ImageNetInfo(subset).label_names())


def match(name: str, meaning: object = ..., subset: str = "imagenet-1k") -> Match:
    (found,) = match_names([name], synsets(subset), {} if meaning is ... else {name: meaning})
    return found


def classes(name: str, meaning: object = ..., subset: str = "imagenet-1k") -> set[str]:
    """The names of the matched classes."""
    index = nouns()
    return {index.words(index.synset_of(synsets(subset)[number]))[0] for number in match(name, meaning, subset).classes}


# --- from names to classes ---


@pytest.mark.parametrize(("name", "number"), [("dog", 118), ("bird", 59), ("car", 10), ("boat", 6), ("sheep", 1)])
def test_the_classes_of_a_name_are_those_at_or_below_its_first_sense(name, number):
    assert len(match(name).classes) == number


def test_every_head_of_timm_knows_dogs():
    for subset in ("imagenet-12k", "imagenet-21k-miil", "imagenet-22k", "imagenet-22k-ms", "imagenet-21k-goog"):
        assert len(match("dog", subset=subset).classes) >= 118


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mouse", {"mouse"}),  # the computer's: the senses before it (rodent, bruise, shy person) have no class
        ("cow", {"ox"}),  # a kind of cattle, which WordNet also calls "cows"
        ("potted plant", {"pot"}),
        ("tv monitor", {"monitor"}),
        ("cell phone", {"cellular telephone"}),  # WordNet has it in one word
        ("stop sign", {"street sign"}),  # the head noun
        ("red fire engine", {"fire engine"}),  # the longest head noun
        ("wall clocks on shelves", {"wall clock"}),
        ("trafficsign", {"street sign"}),  # in one word, which WordNet does not have
        ("skis", {"ski"}),
        ("wolves", {"timber wolf", "white wolf", "red wolf", "coyote"}),
        ("jewellery", {"necklace"}),
        ("train", {"bullet train", "electric locomotive", "steam locomotive", "freight car", "passenger car"}),
        ("Felis", {"tabby", "tiger cat", "persian cat", "siamese cat", "egyptian cat", "cougar", "lynx"}),
    ],
)
def test_names_are_found_as_people_write_them(name, expected):
    assert classes(name) == expected


@pytest.mark.parametrize(
    "name", ["hot dog", "Hot Dog", "hot_dog", "hot-dog", "hotdog", "hotDog", "HOT DOGS", "hotdogs"]
)
def test_spaces_hyphens_case_and_plural_do_not_matter(name):
    assert classes(name) == {"hotdog"}


def test_british_spelling_where_wordnet_has_only_the_american():
    assert classes("slate-coloured junco", subset="imagenet-21k-goog") == {"dark-eyed junco"}  # the same bird


@pytest.mark.parametrize("name", ["sea horse", "sunset", "xqzzy", "", "1", "...", "日本"])
def test_nothing_is_known_of_other_names(name):
    """A sea horse is no horse, as WordNet knows it and does not put it below one."""
    found = match(name)
    assert found.classes == ()
    assert found.sentence == f"{name}: nothing known, labels alone"


def test_sentences_say_what_was_matched():
    assert match("dog").sentence.startswith("dog: 118 classes at or below 'domestic dog' (")
    assert match("sheep").sentence == "sheep: 1 class at or below 'sheep' (ram)"
    assert "'railroad train' and its members (" in match("train").sentence
    assert match("tv").sentence == "tv: 1 class at or below 'television', by the synonym 'television' (television)"
    assert match("stop sign").sentence.endswith("at or below 'sign', which it is a kind of (street sign)")


@pytest.mark.shared
def test_coco_names(shared):
    names = [str(name) for name in np.load(shared / "words/glove300_coco80.npz")["names"]]
    matches = match_names(names, synsets())
    below = [m for m in matches if m.classes and "synonym" not in m.sentence and "kind of" not in m.sentence]
    assert len(below) == COCO_BELOW


# --- the score ---


def score_by_hand(logits: Tensor, members: Tensor) -> Tensor:
    """Entry by entry, in double precision."""
    scores = torch.zeros(len(logits), len(members), dtype=torch.double)
    for n, row in enumerate(logits.double().tolist()):
        everything = math.log(sum(math.exp(logit) for logit in row))
        for c, member in enumerate(members.tolist()):
            if any(member):
                own = math.log(sum(math.exp(logit) for logit, inside in zip(row, member, strict=True) if inside))
                scores[n, c] = own - everything
    return scores


def made_scorer() -> NameScorer:
    torch.manual_seed(0)
    members = torch.rand(5, 12) < 0.3
    members[2] = False
    return NameScorer(3 * torch.randn(12, 7), torch.randn(12), members, [f"tag {n}" for n in range(5)])


def test_the_score_is_the_logsumexp_of_the_classes_minus_that_of_all():
    scorer = made_scorer()
    pooled = torch.randn(9, 7)
    expected = score_by_hand(pooled @ scorer.weight.T + scorer.bias, scorer.members)
    torch.testing.assert_close(scorer.scores(pooled), expected.float(), rtol=1e-5, atol=1e-5)
    assert scorer.known.tolist() == [True, True, False, True, True]
    assert (scorer.scores(pooled)[:, 2] == 0).all()


def test_scores_are_finite_for_extreme_features_and_rows_do_not_depend_on_each_other(monkeypatch):
    scorer = made_scorer()
    pooled = torch.randn(9, 7) * torch.logspace(-9, 9, 9)[:, None]
    scores = scorer.scores(pooled)
    assert scores.isfinite().all()
    assert (scores <= 0).all()
    monkeypatch.setattr("fewtags.models.names.ROWS_AT_ONCE", 2)
    torch.testing.assert_close(scorer.scores(pooled), scores)
    assert scorer.scores(pooled[:0]).shape == (0, 5)


def test_a_saved_scorer_needs_only_its_tensors(tmp_path):
    scorer = made_scorer()
    save_file(scorer.state_dict(), tmp_path / "names.safetensors")
    again = NameScorer.from_state_dict(load_file(tmp_path / "names.safetensors"), scorer.sentences)
    pooled = torch.randn(3, 7)
    assert torch.equal(again.scores(pooled), scorer.scores(pooled))
    assert again.sentences == scorer.sentences


def made_head(dim: int = 4) -> ClassHead:
    generator = torch.Generator().manual_seed(1)
    return ClassHead(torch.randn(1000, dim, generator=generator), torch.randn(1000, generator=generator), synsets())


def test_find_names_puts_the_classes_into_the_rows_of_the_categories():
    head = made_head()
    scorer = find_names(head, ["sunset", "dog", "dogs"])
    assert scorer.members.sum(1).tolist() == [0, 118, 118]
    assert scorer.members[1].nonzero().flatten().tolist() == list(match("dog").classes)
    assert torch.equal(scorer.weight, head.weight)
    assert len(scorer.sentences) == 3


def test_no_scorer_where_nothing_is_known():
    assert find_names(None, ["dog"]) is None
    assert find_names(made_head(), ["sunset", "xqzzy"]) is None
    assert find_names(made_head(), []) is None


# --- the classifier of a backbone ---


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "resnet18", "regnetx_002"])
def test_the_class_head_gives_timms_logits_from_the_pooled_map(name, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    backbone = create_backbone(name, weights=tmp_path / "w.safetensors", keep_classifier=True).eval()
    head, images = backbone.class_head, torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        logits = backbone(images).mean((2, 3)) @ head.weight.T + head.bias
        torch.testing.assert_close(logits, model(images), rtol=1e-3, atol=1e-4)
    assert head.synsets == synsets()
    assert "class_head" not in " ".join(backbone.state_dict())


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "mobilenetv3_small_050"])
def test_other_classifiers_are_not_taken_for_one(name, tmp_path):
    """They have a class token, a norm or a convolution between the pooled map and the linear layer."""
    save_file(timm.create_model(name, pretrained=False).state_dict(), tmp_path / "w.safetensors")
    assert create_backbone(name, weights=tmp_path / "w.safetensors", keep_classifier=True).class_head is None


def test_weights_without_imagenets_classifier_have_no_class_head(tmp_path):
    state = timm.create_model("test_resnet", pretrained=False, num_classes=20).state_dict()
    save_file(state, tmp_path / "other.safetensors")
    save_file({key: value for key, value in state.items() if not key.startswith("fc.")}, tmp_path / "none.safetensors")
    for file in ("other", "none"):
        weights = tmp_path / f"{file}.safetensors"
        assert create_backbone("test_resnet", weights=weights, keep_classifier=True).class_head is None
    assert create_backbone("test_resnet", pretrained=False, keep_classifier=True).class_head is None

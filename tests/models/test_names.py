"""The names of the categories as classes of an ImageNet classifier, and the score they give an image."""

from __future__ import annotations

import math
import random
import re
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from fewtags.data.images import open_image
from fewtags.errors import UserError
from fewtags.metrics import average_precision
from fewtags.models.backbones import ClassHead, create_backbone
from fewtags.models.name_matching import READINGS, SYNONYMS, ClassIndex, Match, match_names, read_overrides
from fewtags.models.names import NameScorer, find_names
from fewtags.models.nouns import FILE as NOUNS
from fewtags.models.nouns import Nouns, nouns
from fewtags.models.phrases import Phrases
from fewtags.models.quick_timm import ImageNetInfo, timm

WORDNET = Path("/usr/share/wordnet")
COCO_BELOW = 54  # of COCO's 80 names have ImageNet-1k classes at or below one of their senses


@cache
def synsets(subset: str = "imagenet-1k") -> tuple[str, ...]:
    return tuple(ImageNetInfo(subset).label_names())


@cache
def index(subset: str = "imagenet-1k") -> ClassIndex:
    return ClassIndex(synsets(subset))


def match(name: str, meaning: object = ..., subset: str = "imagenet-1k") -> Match:
    (found,) = match_names([name], index(subset), {} if meaning is ... else {name: meaning})
    return found


def classes(name: str, meaning: object = ..., subset: str = "imagenet-1k") -> set[str]:
    """The names of the matched classes."""
    index = nouns()
    return {index.words(index.synset_of(synsets(subset)[number]))[0] for number in match(name, meaning, subset).classes}


# --- from names to classes ---


@pytest.mark.parametrize(("name", "number"), [("dog", 118), ("bird", 59), ("car", 10), ("boat", 6), ("sheep", 1)])
def test_the_classes_of_a_name_are_those_at_or_below_its_first_sense(name, number):
    assert len(match(name).classes) == number


def test_all_classes_of_timms_heads_are_nouns_and_many_are_dogs():
    for subset in ("imagenet-12k", "imagenet-22k-ms", "imagenet-21k-goog"):
        assert None not in {nouns().synset_of(key) for key in synsets(subset)}
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


def test_a_rare_sense_does_not_count_by_its_members():
    """A school is also one of fish; but a train's locomotives count, as it is first of all what they belong to."""
    assert classes("school") == set()


def test_as_tags_of_pictures_some_words_mean_another_sense():
    assert classes("plant") == {"daisy", "yellow lady's slipper"}  # not a factory
    assert "turtleneck" not in classes("turtles", subset="imagenet-21k-goog")


@pytest.mark.parametrize("name", ["sea horse", "sunset", "xqzzy", "", "1", "...", "日本"])
def test_nothing_is_known_of_other_names(name):
    """A sea horse is no horse, as WordNet knows it and does not put it below one."""
    found = match(name)
    assert found.classes == ()
    assert found.sentence == f"{name}: nothing known, uses labels only"


def test_sentences_say_what_was_matched():
    assert match("dog").sentence.startswith("dog: 118 classes at or below 'domestic dog' (")
    assert match("sheep").sentence == "sheep: 1 class at or below 'sheep' (ram)"
    assert "'railroad train' and its members (" in match("train").sentence
    assert match("tv").sentence == "tv: 1 class at or below 'television', by the synonym 'television' (television)"
    assert match("stop sign").sentence.endswith("at or below 'sign', which it is a kind of (street sign)")


@pytest.mark.shared
def test_coco_names(shared):
    names = [str(name) for name in np.load(shared / "words/glove300_coco80.npz")["names"]]
    matches = match_names(names, index())
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


def test_scores_are_the_same_in_mixed_precision():
    scorer, pooled = made_scorer(), torch.randn(9, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = scorer.scores(pooled)
    assert torch.equal(scores, scorer.scores(pooled))


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


def test_what_the_classifier_sees_in_images_goes_into_new_tags(monkeypatch):
    """The same shares that a phrase is found by. Without classes, or with too many, features alone do."""
    head, features = made_head(), torch.randn(7, 4, generator=torch.Generator().manual_seed(2))
    phrases = Phrases(lambda: head, lambda: 3.0, features)
    seen = phrases.shares()
    shares = torch.nn.functional.linear(3 * features, head.weight, head.bias).softmax(1)
    assert (seen.which[:, 0] == shares.argmax(1)).all()
    torch.testing.assert_close(seen.dense().square().sum(1), torch.ones(7))
    assert Phrases(lambda: None, lambda: 3.0, features).shares() is None
    monkeypatch.setattr("fewtags.models.phrases._KEEP", 6999)
    assert Phrases(lambda: head, lambda: 3.0, features).shares() is None


# --- the classifier of a backbone ---


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "resnet18"])
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


def test_a_transformer_without_class_token_has_a_class_head_at_any_size(tmp_path):
    model = timm.create_model("swin_s3_tiny_224", pretrained=False)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    head = create_backbone(
        "swin_s3_tiny_224", weights=tmp_path / "w.safetensors", input_size=112, keep_classifier=True
    ).class_head
    assert torch.equal(head.weight, model.head.fc.weight)


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


@pytest.mark.shared
def test_names_alone_tell_what_is_in_real_photographs(shared):
    """No label was seen. On all 4,952 test images the mAP is 74.1; here on 10 of each of four categories."""
    folder = shared / "data/VOCdevkit/VOC2007"
    weights = shared / "weights/tf_efficientnet_lite0_fp16.safetensors"
    backbone = create_backbone("tf_efficientnet_lite0", weights=weights, keep_classifier=True).eval()
    categories = ["bird", "cow", "train", "tvmonitor"]
    scorer = find_names(backbone.class_head, categories)
    photos = {name: first_photos(folder, name) for name in categories}
    scores, truth = [], []
    with torch.no_grad():
        for row, pixels in enumerate(photos.values()):
            scores.append(scorer.scores(backbone(pixels).mean((2, 3))))
            truth.append(torch.full((len(pixels),), row))
    present = torch.cat(truth)[:, None] == torch.arange(len(categories))
    assert np.mean(average_precision(torch.cat(scores).numpy(), present.numpy())) > 0.85  # chance is 0.25


def first_photos(folder: Path, name: str) -> Tensor:
    lines = (folder / f"ImageSets/Main/{name}_test.txt").read_text().split("\n")
    files = [folder / f"JPEGImages/{line.split()[0]}.jpg" for line in lines if line.endswith(" 1")][:10]
    pixels = [np.asarray(open_image(file).resize((224, 224), Image.Resampling.BICUBIC)) for file in files]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


# --- a user's file ---

FILE = """
cow: {synonym: ox}
Hot_Dog: {synset: dog.n.01}
boat: {classes: [n02951358, gondola, 814]}
kite: none
sunset: {synset: n09193705}
"""


def test_a_users_file_says_what_tags_mean(tmp_path):
    (tmp_path / "names.yaml").write_text(FILE, encoding="utf-8")
    categories = ["cow", "hot dog", "boat", "kite", "sunset", "car"]
    scorer = find_names(made_head(), categories, tmp_path / "names.yaml")
    found = dict(
        zip(categories, match_names(categories, index(), read_overrides(tmp_path / "names.yaml")), strict=True)
    )
    assert scorer.members.sum(1).tolist() == [1, 118, 3, 0, 1, 10]
    assert scorer.sentences == [m.sentence for m in found.values()]
    assert found["cow"].sentence == "cow: as ox: 1 class at or below 'ox' (ox)"
    assert found["boat"].sentence == "boat: 3 classes listed in the names file (canoe, gondola, speedboat)"
    assert found["kite"].sentence == "kite: uses labels only, as set in the names file"
    assert classes("sunset", {"synset": "n09193705"}) == {"alp"}


def test_a_told_meaning_without_classes_leaves_labels_alone():
    assert match("sky", {"synset": "sky.n.01"}).sentence == "sky: nothing known at or below sky.n.01, uses labels only"
    assert match("sky", {"synonym": "heavens"}).sentence == "sky: as heavens: nothing known, uses labels only"


@pytest.mark.parametrize(
    ("meaning", "message"),
    [
        ({"synset": "dog.n.99"}, r"'dog\.n\.99', which is not in WordNet 3\.0; that word has 7 senses\."),
        ({"synset": "hund"}, r"'hund', which is not in WordNet 3\.0; write it as 'dog\.n\.01' or 'n02084071'\."),
        ({"classes": ["hund"]}, "gives 'dog' the class 'hund', which the backbone does not have"),
        ({"classes": 1000}, "the class 1000, which"),
        ({"sense": 1}, r"should give 'dog' one of \{synset: \.\.\.\}.*it has \{'sense': 1\}"),
        (["ox"], r"it has \['ox'\]"),
    ],
)
def test_a_meaning_that_does_not_exist_is_refused(meaning, message):
    with pytest.raises(UserError, match=message):
        match("dog", meaning)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dgo: none", "has 'dgo', which is not one of the tags; did you mean 'dog'"),
        ("- dog", "should say what tags mean"),
        ("dog: [", "is not readable YAML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(content, message, tmp_path):
    (tmp_path / "names.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        find_names(made_head(), ["dog"], tmp_path / "names.yaml")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"names\.yaml cannot be read \(No such file"):
        find_names(made_head(), ["dog"], tmp_path / "names.yaml")


# --- the nouns ---


def test_synsets_by_either_key():
    index = nouns()
    dog = index.synset_of("dog.n.01")
    assert index.words(dog) == ["dog", "domestic dog", "canis familiaris"]
    assert index.synset_of("n02084071") == dog
    for wrong in ("n02084072", "n99999999", "dog.n.08", "dog.n.00", "dog.v.01", "dog", "xqzzy.n.01", ""):
        assert index.synset_of(wrong) is None, wrong


@pytest.mark.parametrize("name", [*READINGS, *SYNONYMS])
def test_the_tables_of_words_point_to_nouns(name):
    assert name not in READINGS or nouns().synset_of(READINGS[name]) is not None
    assert name not in SYNONYMS or classes(SYNONYMS[name])


def test_the_nouns_are_read_quickly():
    took = []
    for _ in range(3):
        begin = time.process_time()
        Nouns()
        took.append(time.process_time() - begin)
    assert min(took) < 0.3


def test_the_licence_of_wordnet_is_beside_the_file():
    notice = NOUNS.with_name("WORDNET-LICENSE.txt").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in notice
    assert "Permission to use, copy, modify and distribute" in notice


@pytest.mark.skipif(not (WORDNET / "data.noun").is_file(), reason="WordNet 3.0 (wordnet-base) is not installed")
def test_the_file_says_what_wordnet_says():
    """Sampled lines of WordNet's own files, taken apart here a second time."""
    index, rng = nouns(), random.Random(0)
    lines = [line for line in (WORDNET / "data.noun").read_text().splitlines() if line[0] != " "]
    assert len(lines) == len(index.offsets)
    for line in rng.sample(lines, 400):
        synset = index.synset_of("n" + line[:8])
        fields = line.partition(" | ")[0].split()
        words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        assert index.words(synset) == list(dict.fromkeys(word.lower().replace("_", " ") for word in words))
        for found, pattern in ((index.hypernyms, r" @i? (\d{8}) n"), (index.members, r" %m (\d{8}) n")):
            expected = [int(offset) for offset in re.findall(pattern, line.partition(" | ")[0])]
            assert [int(index.offsets[other]) for other in found(synset)] == expected
    lines = [line for line in (WORDNET / "index.noun").read_text().splitlines() if line[0] != " "]
    assert len(lines) == len(index.lemmas)
    for line in rng.sample(lines, 400):
        lemma, _, number, *rest = line.split()
        for sense, offset in enumerate(rest[-int(number) :], start=1):
            assert index.synset_of(f"{lemma}.n.{sense:02d}") == index.synset_of(f"n{offset}")

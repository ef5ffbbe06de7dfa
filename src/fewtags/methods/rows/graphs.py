"""Methods with a graph between categories."""

from __future__ import annotations

from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import DEFAULT_NOTE, PAPER_NOTE, PAPER_TRAINING, PAPER_WORD_DIM

ROWS = (
    Method(
        name="ssgrl",
        title="Semantic-specific graph representation (SSGRL)",
        sentence="Assume negative on one feature per category, with messages between categories.",
        head="graph",
        objective="fewtags.methods.elementwise:AssumeNegative",
        venue="ICCV 2019",
        bibtex=citations.SSGRL,
        profiles={
            "paper": Profile(
                {**PAPER_TRAINING, "head.graph": "words", "method.loss_scale": 10.0},
                PAPER_NOTE + "; its graph is learned, initialised with the similarity of the category names",
                PAPER_WORD_DIM,
            ),
            "own": Profile(
                {
                    "model.backbone": "resnet101",
                    "model.train_from": "layer4",
                    "head.width": 1024,
                    "input.size": 576,
                    "input.resize": 640,
                    "input.crops": [640, 576, 512, 384, 320],
                    "input.flip": False,
                    "train.batch_size": 4,
                    "train.optimizer": "adam",
                    "train.lr": 1e-5,
                    "train.head_lr_scale": 1.0,
                    "train.weight_decay": 0.0,
                    "train.schedule": "none",
                },
                "its authors' model and training, for the given number of epochs",
            ),
        },
        note=DEFAULT_NOTE,
        group="graphs",
    ),
    Method(
        name="kggr",
        title="Knowledge-guided graph routing (KGGR)",
        sentence="SSGRL, with a second graph over the weights of the categories' classifiers.",
        head="graph",
        objective="fewtags.methods.elementwise:AssumeNegative",
        venue="IEEE TPAMI 2022",
        bibtex=citations.KGGR,
        settings={"head.classifier_graph": "paper"},
        profiles={
            "paper": Profile({**PAPER_TRAINING, "method.loss_scale": 10.0}, PAPER_NOTE, PAPER_WORD_DIM),
            "own": Profile(
                {**PAPER_TRAINING, "train.batch_size": 8, "train.step_epochs": 15},
                "the training of a public third-party implementation; its authors published none",
            ),
        },
        note=DEFAULT_NOTE,
        group="graphs",
    ),
    Method(
        name="cst",
        title="Cross-image semantic transfer (CST)",
        sentence="Trains unknown labels as present where the category's feature is similar to its known positives.",
        head="graph",
        objective="fewtags.methods.semantic_transfer:CrossImageTransfer",
        venue="AAAI 2022",
        bibtex=citations.SST,
        profiles={
            "paper": Profile(
                {
                    **PAPER_TRAINING,
                    "method.loss_scale": 10.0,
                    "method.csl": "sampled",
                    "method.transfer_others": "absent",
                },
                PAPER_NOTE,
                PAPER_WORD_DIM,
            ),
            "own": Profile(
                {**PAPER_TRAINING, "method.csl": "sampled", "train.batch_size": 8},
                "its authors' training, plus assuming unknown labels absent, which they did not need",
            ),
        },
        note=DEFAULT_NOTE,
        group="graphs",
    ),
    Method(
        name="sst",
        title="Structured semantic transfer (SST)",
        sentence="CST, and also where the known labels of the image make an unknown one likely.",
        head="graph",
        objective="fewtags.methods.semantic_transfer:SemanticTransfer",
        venue="AAAI 2022",
        bibtex=citations.SST,
        profiles={
            "own": Profile(
                {
                    **PAPER_TRAINING,
                    "method.csl": "sampled",
                    "method.pair_width": 512,
                    "method.pair_hidden": 1024,
                    "train.batch_size": 8,
                },
                "its authors' training, plus assuming unknown labels absent, which they did not need",
            ),
        },
        note=DEFAULT_NOTE + "; a smaller pair classifier, as its size is quadratic in the number of categories",
        group="graphs",
    ),
)

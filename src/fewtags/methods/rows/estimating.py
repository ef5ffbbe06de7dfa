"""Methods that estimate the unknown labels, or the risk without them."""

from __future__ import annotations

from fewtags.methods import citations
from fewtags.methods.method import Method, Profile
from fewtags.methods.recipes import DEFAULT_NOTE, OWN_END_TO_END, PAPER_LINEAR, PAPER_NOTE

ROWS = (
    Method(
        name="role",
        title="Regularised online label estimation (ROLE)",
        sentence="Estimates every unknown label during training, so that each image has about the expected number.",
        head="linear",
        objective="fewtags.methods.role:Role",
        venue="CVPR 2021",
        bibtex=citations.ROLE,
        profiles={
            "paper": Profile(
                {
                    **PAPER_LINEAR,
                    "method.table_start": "absent",
                    "method.table_lr_scale": 1.0,
                    "method.table_weight_decay": 5e-4,
                    "method.loss_scale": 10.0,
                },
                PAPER_NOTE,
            ),
            "own": Profile(
                {**OWN_END_TO_END, "train.head_lr_scale": 1.0},
                "its authors' end-to-end training; they chose batch size and learning rate on complete labels",
            ),
        },
        note=DEFAULT_NOTE,
        group="estimating the unknown",
    ),
    Method(
        name="epr",
        title="Expected positive regularisation (EPR)",
        sentence="Trains known positives only, and keeps the number of positives per image at the expected one.",
        head="linear",
        objective="fewtags.methods.expected_count:ExpectedCount",
        venue="CVPR 2021",
        bibtex=citations.ROLE,
        note=DEFAULT_NOTE,
        group="estimating the unknown",
    ),
    Method(
        name="em",
        title="Entropy maximisation (EM loss)",
        sentence="Trains unknown labels as neither present nor absent, by maximising their entropy.",
        head="linear",
        objective="fewtags.methods.entropy:EntropyMaximisation",
        venue="ECCV 2022",
        bibtex=citations.EM_APL,
        note="its authors' weight on VOC, and " + DEFAULT_NOTE,
        group="estimating the unknown",
    ),
    Method(
        name="em-apl",
        title="EM loss with asymmetric pseudo-labels (EM + APL)",
        sentence="The EM loss; the least probable unknown labels become soft negatives, more of them each epoch.",
        head="linear",
        objective="fewtags.methods.entropy:AsymmetricPseudoLabels",
        venue="ECCV 2022",
        bibtex=citations.EM_APL,
        note="its authors' weights on VOC, and " + DEFAULT_NOTE,
        group="estimating the unknown",
    ),
    Method(
        name="gr",
        title="Generalised robust loss (GR loss)",
        sentence="Gives unknown labels a soft label and a weight by their own probability and the epoch.",
        head="linear",
        objective="fewtags.methods.generalised_robust:GeneralisedRobust",
        venue="IJCAI 2024",
        bibtex=citations.GR_LOSS,
        note="its authors' functions, and " + DEFAULT_NOTE,
        group="estimating the unknown",
    ),
    Method(
        name="nnpu",
        title="Non-negative risk estimator (nnPU)",
        sentence="The risk on complete labels, estimated for each category from its known positives and all images.",
        head="linear",
        objective="fewtags.methods.pu_risk:NonNegativeRisk",
        venue="NeurIPS 2017",
        bibtex=citations.NNPU,
        note=DEFAULT_NOTE,
        group="estimating the unknown",
    ),
    Method(
        name="pu-mlc",
        title="Variational positive-unlabelled loss (PU-MLC)",
        sentence="Pulls known positives of a category up against the mean of all images; no label is assumed negative.",
        head="linear",
        objective="fewtags.methods.variational_pu:VariationalPU",
        venue="ICME 2024",
        bibtex=citations.PU_MLC,
        note="its authors' loss for VOC without their network and augmentation, and " + DEFAULT_NOTE,
        group="estimating the unknown",
    ),
)

"""Gated graph propagation over the categories (SSGRL, KGGR, CST): evidence for one says something about the others.

For the states h [B, C, D] of one step, with A_ij the weight of category j given category i:

    m  = [A h ; A^T h]
    z  = sigmoid(Wz m + Uz h)            r = sigmoid(Wr m + Ur h)
    h' = tanh(Wh m + Uh (r * h))         h <- (1 - z) * h + z * h'

SSGRL starts from the decoupled features f and reads out tanh(Wo [h ; f]). KGGR sends the classifier's weights through a
second such graph.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewtags.contract import Outputs, Problem, WordVectors
from fewtags.errors import UserError
from fewtags.labels import PRESENT
from fewtags.models.decoupling import SemanticDecoupling
from fewtags.models.heads import BiasInit, Head, HeadSpec, initial_bias
from fewtags.settings import Settings

MOST_CATEGORIES = 20_000  # two matrices of 1.6 GB


def cooccurrence(labels: Tensor) -> Tensor:
    """[C, C] share of the images known to show category i that are known to show j too; zeros if none shows i."""
    present = (labels == PRESENT).float()
    together = present.T @ present  # n_ij
    return together / together.diagonal().clamp(min=1)[:, None]


def word_cosines(words: WordVectors) -> Tensor:
    """[C, C] cosine similarity of the categories' word vectors."""
    unit = F.normalize(words.vectors.float(), dim=1)
    return unit @ unit.T


class LabelGraph(nn.Module):
    """The two matrices messages travel along: fixed co-occurrence, or learned, initialised with word similarity."""

    incoming: Tensor
    outgoing: Tensor

    def __init__(self, kind: Literal["cooccurrence", "words"], words: WordVectors):
        super().__init__()
        self.kind = kind
        num_categories = len(words.vectors)
        if num_categories > MOST_CATEGORIES:
            raise UserError(
                f"A graph of {num_categories:,} categories needs {8e-9 * num_categories**2:.0f} GB for which follows "
                f"from which; it takes {MOST_CATEGORIES:,} at most. Use a method without one, such as refined."
            )
        if kind == "cooccurrence":
            self.register_buffer("incoming", torch.zeros(num_categories, num_categories))
            self.register_buffer("outgoing", torch.zeros(num_categories, num_categories))
        else:
            self.incoming = nn.Parameter(word_cosines(words))
            self.outgoing = nn.Parameter(word_cosines(words))

    def start(self, labels: Tensor) -> None:
        """Compute co-occurrence from the labels [N, C] of the training images."""
        if self.kind == "cooccurrence":
            matrix = cooccurrence(labels)
            self.incoming.copy_(matrix)
            self.outgoing.copy_(matrix.T)

    def messages(self, states: Tensor) -> Tensor:
        """[..., C, D] -> [..., C, 2 D]"""
        return torch.cat([self.incoming @ states, self.outgoing @ states], dim=-1)


class GatedPropagation(nn.Module):
    """States [..., C, D] -> states after `steps` rounds of messages."""

    def __init__(self, width: int, steps: int):
        super().__init__()
        self.steps = steps
        self.from_messages = nn.Linear(2 * width, 3 * width)  # Wz, Wr, Wh
        self.to_gates = nn.Linear(width, 2 * width, bias=False)  # Uz, Ur
        self.to_candidate = nn.Linear(width, width, bias=False)  # Uh

    def forward(self, states: Tensor, graph: LabelGraph) -> Tensor:
        for _ in range(self.steps):
            update, reset, candidate = self.from_messages(graph.messages(states)).chunk(3, dim=-1)
            from_update, from_reset = self.to_gates(states).chunk(2, dim=-1)
            z, r = torch.sigmoid(update + from_update), torch.sigmoid(reset + from_reset)
            proposed = torch.tanh(candidate + self.to_candidate(r * states))
            states = torch.lerp(states, proposed.to(states), z.to(states))
        return states


class GraphReadout(nn.Module):
    """W [h ; x] + b: the final and the initial states combined."""

    def __init__(self, width: int, steps: int):
        super().__init__()
        self.propagation = GatedPropagation(width, steps) if steps else None
        self.output = nn.Linear(2 * width, width)

    def forward(self, start: Tensor, graph: LabelGraph) -> Tensor:
        states = start if self.propagation is None else self.propagation(start, graph)
        return self.output(torch.cat([states, start], dim=-1))


class GraphHead(Head["GraphHead.Config"]):
    """One feature per category, messages between categories, a shared tanh layer, one weight vector per category."""

    class Config(Settings):
        width: int = 512
        """Width d in which words and map are compared."""
        steps: int = 3
        """Rounds of messages between categories."""
        graph: Literal["cooccurrence", "words"] = "cooccurrence"
        """Messages weighted by co-occurrence of known labels, or by a learned matrix initialised with the similarity
        of the category names."""
        classifier_graph: Literal["none", "paper", "product"] = "none"
        """Send the classifier's weights through a graph too (KGGR): use the output ("paper"), or multiply it with the
        input, as in a public implementation ("product")."""
        dropout: float = 0.0
        """Share of the classifier's inputs dropped in training."""
        bias_init: BiasInit = "prior"
        """Initialise biases at the log-odds of a known positive ("prior") or at zero, as in the research code."""

    spec = HeadSpec(needs_words=True)

    def __init__(self, config: Config, in_channels: int, num_categories: int, words: WordVectors | None = None):
        super().__init__(config, in_channels, num_categories, words)
        assert words is not None  # needs_words
        self.feature_dim = in_channels
        self.decoupling = SemanticDecoupling(in_channels, words, config.width)
        self.label_graph = LabelGraph(config.graph, words)
        self.feature_graph = GraphReadout(in_channels, config.steps)
        self.weight_graph = GraphReadout(in_channels, config.steps) if config.classifier_graph != "none" else None
        self.dropout = nn.Dropout(config.dropout)
        self.weight = nn.Parameter(torch.empty(num_categories, in_channels))
        self.bias = nn.Parameter(torch.zeros(num_categories))
        nn.init.uniform_(self.weight, -(in_channels**-0.5), in_channels**-0.5)

    def initialise(self, problem: Problem) -> None:
        self.label_graph.start(problem.labels)
        with torch.no_grad():
            self.bias.copy_(initial_bias(self.config.bias_init, problem))

    def forward(self, feature_map: Tensor) -> Outputs:
        features, attention = self.decoupling(feature_map)
        hidden = self.dropout(torch.tanh(self.feature_graph(features, self.label_graph)))
        logits = torch.einsum("bcd,cd->bc", hidden, self.classifier_weights().to(hidden)) + self.bias
        return Outputs(logits, features, attention)

    def classifier_weights(self) -> Tensor:
        """[C, D]"""
        if self.weight_graph is None:
            return self.weight
        transformed = self.weight_graph(self.weight, self.label_graph)
        return transformed * self.weight if self.config.classifier_graph == "product" else transformed

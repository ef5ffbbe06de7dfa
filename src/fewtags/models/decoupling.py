"""Semantic decoupling (Eq. 3): each category's word vector attends to the feature map; one feature per category.

For location l of image b and category c the equations are

    t_blc = tanh(W1 x_bl * W2 g_c)                 elementwise, [B, L, C, d]
    e_blc = w4 . (W3 t_blc + b3) + b4
    a_bc  = softmax of e_bc over the locations
    f_bc  = sum over the locations of a_bcl x_bl

Nothing is approximated, but the computation differs: W3 and w4 are multiplied first, b3 and b4
cancel in the softmax, and t is computed in blocks that fit in the CPU cache, and recomputed for the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewtags.contract import Outputs, Problem, WordVectors
from fewtags.models.heads import BiasInit, Head, HeadSpec, initial_bias
from fewtags.settings import Settings


class SemanticDecoupling(nn.Module):
    """Feature map [B, D, h, w] -> features [B, C, D] and the attention [B, C, h, w] that made them."""

    words: Tensor

    def __init__(self, in_channels: int, words: WordVectors, width: int = 512):
        super().__init__()
        if words.learned:
            self.words = nn.Parameter(words.vectors.float().clone())
        else:
            self.register_buffer("words", words.vectors.float().clone())
        self.project_map = nn.Linear(in_channels, width, bias=False)  # W1
        self.project_words = nn.Linear(self.words.shape[1], width, bias=False)  # W2
        # Two consecutive linear layers are one layer, but not for an optimiser with momentum and weight
        # decay. So both are trained, as in the original, and folded before use.
        self.mix = nn.Linear(width, width)  # W3, b3
        self.score = nn.Linear(width, 1)  # w4, b4

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        locations = as_locations(feature_map)
        attention = self.attend(locations)
        return attention @ locations, attention.unflatten(-1, feature_map.shape[-2:])

    def attend(self, locations: Tensor) -> Tensor:
        """Locations [B, L, D] -> attention [B, C, L], which sums to 1 over the locations."""
        words = self.project_words.weight @ self.words.T  # [d, C]
        mapped = self.project_map.weight @ locations.flatten(0, 1).T  # [d, B*L]
        direction = (self.score.weight @ self.mix.weight)[0]  # W3^T w4
        scores = tanh_scores(words, mapped, direction).unflatten(1, locations.shape[:2])  # [C, B, L]
        # b3 and b4 add the same number to every location, which cancels in the softmax. Adding it, as a zero,
        # gives them the gradient zero that they have in the original.
        unused = 0.0 * (self.mix.bias.sum() + self.score.bias.sum())
        return (scores + unused).softmax(-1).transpose(0, 1)


def as_locations(feature_map: Tensor) -> Tensor:
    """[B, D, h, w] -> [B, h*w, D]"""
    return feature_map.flatten(2).transpose(1, 2).contiguous()


def tanh_scores(a: Tensor, b: Tensor, direction: Tensor) -> Tensor:
    """sum_k direction_k tanh(a_ki b_kj) for a [d, I] and b [d, J]: [I, J]."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # a compiler fuses it
        return (torch.tanh(a[:, :, None] * b[:, None, :]) * direction[:, None, None]).sum(0)
    dtype = torch.promote_types(a.dtype, torch.float32)
    with torch.autocast(a.device.type, enabled=False):
        return _TanhScores.apply(a.to(dtype), b.to(dtype), direction.to(dtype))


class _TanhScores(torch.autograd.Function):
    """`tanh_scores` in blocks of the product, which are discarded and recomputed for the gradient.

    tanh(x) = 2 sigmoid(2x) - 1, and sigmoid is three times faster.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, direction: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, direction)
        scores = a.new_empty(a.shape[1], b.shape[1])
        scores.copy_(-direction.sum())
        for k, i, sigmoid in _pieces(a, b):
            scores[i].view(-1).addmv_(sigmoid.flatten(1).T, direction[k], alpha=2)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyrefly: ignore[bad-override]
        a, b, direction = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_a, grad_b, grad_direction = torch.zeros_like(a), torch.zeros_like(b), torch.zeros_like(direction)
        for k, i, sigmoid in _pieces(a, b):
            grad_direction[k].addmv_(sigmoid.flatten(1), grad[i].view(-1), alpha=2)
            slope = sigmoid  # grad * sigmoid * (1 - sigmoid), a quarter of grad * (1 - tanh^2)
            torch.ops.aten.sigmoid_backward.grad_input(grad[i].expand_as(sigmoid), sigmoid, grad_input=slope)
            for n, matrix in enumerate(slope.unbind(), start=k.start):  # plain products are faster than batched ones
                grad_a[n, i].addmv_(matrix, b[n])
                grad_b[n].addmv_(matrix.T, a[n, i])
        scale = 4 * direction[:, None]
        return grad_a.mul_(scale), grad_b.mul_(scale), grad_direction.sub_(grad.sum())


PIECE = {"cpu": 2**19, "cuda": 2**25}  # elements per block; on a CPU 2 MB, which fit in cache


def _pieces(a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """(k, i, sigmoid(2 a_ki b_kj) for all j) for blocks of k and i; the tensor is reused for the next block."""
    (width, rows), columns = a.shape, b.shape[1]
    piece = PIECE.get(a.device.type, PIECE["cuda"])
    row_step = min(rows, max(1, piece // (4 * columns)))  # at least 4 of the width, for fewer passes over the sums
    width_step = min(width, max(1, piece // (row_step * columns)))
    buffer = a.new_empty(width_step * row_step * columns)
    double = 2 * a
    for first_row in range(0, rows, row_step):
        i = slice(first_row, min(first_row + row_step, rows))
        for first in range(0, width, width_step):
            k = slice(first, min(first + width_step, width))
            shape = (k.stop - k.start, i.stop - i.start, columns)
            product = buffer[: shape[0] * shape[1] * shape[2]].view(shape)
            torch.mul(double[k, i, None], b[k, None, :], out=product)
            yield k, i, product.sigmoid_()


class DecoupledHead(Head["DecoupledHead.Config"]):
    """One feature per category, a shared tanh layer, one weight vector per category."""

    class Config(Settings):
        width: int = 512
        """Width d in which words and map are compared."""
        hidden: bool = True
        """A tanh layer, shared by all categories, between the features and the classifier."""
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
        self.hidden = nn.Linear(in_channels, in_channels) if config.hidden else None
        self.dropout = nn.Dropout(config.dropout)
        self.weight = nn.Parameter(torch.empty(num_categories, in_channels))
        self.bias = nn.Parameter(torch.zeros(num_categories))
        nn.init.uniform_(self.weight, -(in_channels**-0.5), in_channels**-0.5)

    def initialise(self, problem: Problem) -> None:
        with torch.no_grad():
            self.bias.copy_(initial_bias(self.config.bias_init, problem))

    def forward(self, feature_map: Tensor) -> Outputs:
        locations = as_locations(feature_map)  # [B, L, D]
        attention = self.decoupling.attend(locations)  # [B, C, L]
        features = attention @ locations
        logits = torch.einsum("bcd,cd->bc", self.dropout(self._hidden(features, attention, locations)), self.weight)
        return Outputs(logits + self.bias, features, attention.unflatten(-1, feature_map.shape[-2:]))

    def _hidden(self, features: Tensor, attention: Tensor, locations: Tensor) -> Tensor:
        """tanh(A f + a). The attention sums to 1, so the linear layer can be applied before or after it, whichever is
        cheaper."""
        if self.hidden is None:
            return features
        if attention.shape[1] > attention.shape[2]:
            return torch.tanh(attention @ self.hidden(locations))
        return torch.tanh(self.hidden(features))

"""Scores without an image, the slow and obvious way: by regression on all others."""

from __future__ import annotations

import torch


def refitted(ridge, rotated, target, category, rows):
    """Regression on `rows` alone with an intercept that has no penalty, and the penalty matrix of the fit.

    Returns the intercept and the weights, in float64.
    """
    x = torch.cat([torch.ones(len(rotated), 1), rotated], dim=1).double()[rows]
    penalty = 1 / ridge.gain[category].double() - ridge.basis.values.double()
    matrix = torch.diag(torch.cat([torch.zeros(1), ridge.num_images * penalty]).double())
    solution = torch.linalg.solve(x.T @ x + matrix, x.T @ target[rows, category].double())
    return solution[0], solution[1:]


def score(ridge, category, prediction, own=None):
    """The prediction of a regression in the unit of scores: above the share of positives, in parts of it.

    Without an image whose `own` weight is given, the share is that of the others, and the mean of their positives is
    less reliable: r = signal / (signal + noise / number).
    """
    share = ridge.share[category]
    if own is None:
        return ridge.unit[category] * (prediction - share) / share
    number, reliability = ridge.num_images * share, ridge.reliability[category]
    rest = (number - own) / (ridge.num_images - 1)
    noise = number * (1 - reliability) / reliability  # with a signal of 1
    less = (1 / (1 + noise / (number - own))) / reliability
    return less * ridge.unit[category] * (prediction - rest) / rest


def score_without(ridge, rotated, target, category, image, at):
    others = torch.arange(len(rotated)) != image
    intercept, weights = refitted(ridge, rotated, target, category, others)
    return score(ridge, category, intercept + at.double() @ weights, target[image, category]).float()

"""Features that tests of the closed form learn from."""

from __future__ import annotations

import torch


def some_images(num_images=300, num_categories=4, dim=12, known=0.5, seed=0, strength=1.5):
    """Features with a direction per category, the truth, and labels of which a share is known.

    The directions depend on nothing but the sizes: another seed gives more images of the same world.
    """
    directions = torch.randn(num_categories, dim, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(num_images, num_categories, generator=generator) < 0.2
    features = strength * truth.float() @ directions + torch.randn(num_images, dim, generator=generator) + 1
    hidden = torch.rand(truth.shape, generator=generator) >= known
    return features, truth, (truth & ~hidden).to(torch.int8)

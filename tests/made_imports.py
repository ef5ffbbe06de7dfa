"""What the server of made_processes.py imports beforehand: all that its processes would each import."""

import torch._dynamo  # every rank of DistributedDataParallel would
import torch.nn.parallel
import uvicorn

import fewtags.cli
import fewtags.commands.review
import fewtags.commands.train
import fewtags.engine.training
import fewtags.review.server
from fewtags.models.quick_timm import timm

__all__ = ["fewtags", "timm", "torch", "uvicorn"]

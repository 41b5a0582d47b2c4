"""Networks of timm, with random weights, at the size that they were made for."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.zoo.model import adamw, classes, model, sgd
from benchmarks.zoo.packages import import_timm

NAMES = {
    "mobilenetv3_large_100": sgd,
    "efficientnet_b0": sgd,
    "resnet50": sgd,
    "regnety_004": sgd,
    "convnext_tiny": adamw,
    "vit_tiny_patch16_224": adamw,
    "swin_tiny_patch4_window7_224": adamw,
}
"""With what each is trained by."""

BATCHES = (1, 8)
SIZE, N_CLASSES = 224, 1000


def _made(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    net: nn.Module = import_timm().create_model(name, pretrained=False)
    return net, (torch.randn(batch, 3, SIZE, SIZE),), classes(batch, N_CLASSES)


for _name, _optimizer in NAMES.items():
    for _batch in BATCHES:
        _add = model(f"timm {_name}, batch {_batch}", optimizer=_optimizer)
        _add(partial(_made, _name, _batch))

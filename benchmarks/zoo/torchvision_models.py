"""Networks of torchvision, with random weights, at the size that they were made for."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.zoo.model import classes, model, sgd
from benchmarks.zoo.packages import import_torchvision

NAMES = (
    *("resnet18", "resnet50", "vgg11", "densenet121", "convnext_tiny"),
    *("mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0"),
    *("regnet_y_400mf", "shufflenet_v2_x1_0"),
)
BATCHES = (1, 16)
SIZE, N_CLASSES = 224, 1000

LAYOUTS = {"": torch.contiguous_format, ", channels last": torch.channels_last}
"""By what a name ends in; only ResNets are measured in channels last."""


def _network(name: str) -> nn.Module:
    net: nn.Module = getattr(import_torchvision().models, name)(weights=None)
    return net


def _made(
    name: str, batch: int, layout: torch.memory_format
) -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    x = torch.randn(batch, 3, SIZE, SIZE).to(memory_format=layout)
    net = _network(name).to(memory_format=layout)
    return net, (x,), classes(batch, N_CLASSES)


for _name in NAMES:
    for _end, _layout in LAYOUTS.items():
        for _batch in BATCHES:
            if _name.startswith("resnet") or not _end:
                _add = model(
                    f"torchvision {_name}{_end}, batch {_batch}", optimizer=sgd
                )
                _add(partial(_made, _name, _batch, _layout))

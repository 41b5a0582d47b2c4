"""Networks of torchvision, with random weights, at the size that they were made for."""

from __future__ import annotations

import contextlib
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.model import classes, model, sgd

NAMES = (
    *("resnet18", "resnet50", "vgg11", "densenet121", "convnext_tiny"),
    *("mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0"),
    *("regnet_y_400mf", "shufflenet_v2_x1_0"),
)
BATCHES = (1, 16)
SIZE, N_CLASSES = 224, 1000

LAYOUTS = {"": torch.contiguous_format, ", channels last": torch.channels_last}
"""By what a name ends in; only ResNets are measured in channels last."""

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""What torchvision wants to be there, also where its compiled half does not load."""

_library: list[torch.library.Library] = []


def import_torchvision() -> Any:
    """The module, also where its compiled half is for another build of torch."""
    try:
        return import_module("torchvision")
    except RuntimeError:  # its operators are not there
        _library.append(torch.library.Library("torchvision", "FRAGMENT"))
        for schema in _SCHEMAS:
            with contextlib.suppress(RuntimeError):  # it is there
                _library[-1].define(schema)
    return import_module("torchvision")


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

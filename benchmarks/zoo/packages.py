"""Packages of networks, imported where torchvision's compiled half does not load.

It is built for the CUDA builds of torch; timm and transformers import it too.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""What torchvision wants to be there."""

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


def import_timm() -> Any:
    """The module timm."""
    with contextlib.suppress(ImportError):
        import_torchvision()
    return import_module("timm")


def import_transformers() -> Any:
    """The module transformers, which also works without torchvision."""
    with contextlib.suppress(ImportError):
        import_torchvision()
    return import_module("transformers")

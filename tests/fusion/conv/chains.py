"""What tests of chains in nn.Sequential share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn


def norm(channels: int) -> nn.BatchNorm2d:
    """One in eval mode whose statistics are of some other data."""
    made = nn.BatchNorm2d(channels).eval()
    with torch.no_grad():
        made.weight.normal_()
        made.bias.normal_()
        made.running_mean.normal_()
        made.running_var.uniform_(0.3, 2)
    return made


def called(run: Callable[[], Any]) -> set[str]:
    """Files of torch.nn.modules whose ``forward`` ran as Python.

    By the names of modules: our stand-ins say that their code is in torch's files.
    """
    seen = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "forward":
            seen.add(frame.f_globals["__name__"].rpartition(".")[2] + ".py")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen - {"sequential.py"}

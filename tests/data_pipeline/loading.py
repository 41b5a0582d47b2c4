"""Loaders by stock and with the switch on; and torchvision, for some of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc.data_pipeline import waiting
from pai_torchacc.data_pipeline.fetching import is_identical

Make = Callable[[], Iterable[Any]]


def epochs(loader: Iterable[Any], n: int = 2, seed: int = 3) -> tuple[list[Any], Any]:
    """All batches of some epochs, and what generators give afterwards."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    batches = [batch for _ in range(n) for batch in loader]
    after = torch.get_rng_state().tolist(), random.random(), np.random.random()
    return batches, after


def assert_same(
    make: Make, *, at_once: bool | None, reason: str | None = None, n: int = 2
) -> list[waiting.Waiting]:
    """Two loaders that ``make`` makes, by stock and with the switch on, n epochs each.

    ``at_once`` says whether batches have to be fetched at once, None that both will do;
    ``reason`` is a part of why not. Returns what was counted.
    """
    theirs, after = epochs(make(), n)
    with ptac.enable_data_pipeline():
        waiting.reset()
        loader = make()
        ours, then = epochs(loader, n)
        entries = waiting.loaders()
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert is_same(one, other), (one, other)
    assert then == after
    assert sum(e.batches for e in entries) == len(ours)
    if at_once is not None and not getattr(loader, "num_workers", 0):
        expected = len(ours) if at_once else 0
        assert sum(e.at_once for e in entries) == expected, entries
    if reason is not None:
        assert any(reason in why for e in entries for why in e.reasons), entries
    return entries


def is_same(one: Any, other: Any) -> bool:
    """The same types, layouts and bits, grad and inference too."""
    if isinstance(one, Tensor) and (
        one.requires_grad != other.requires_grad
        or one.is_inference() != other.is_inference()
    ):
        return False
    return is_identical(one, other)


_declared: list[Any] = []


def transforms() -> Any:
    """``torchvision.transforms``; without it tests are skipped and say so.

    torchvision's files on the index are built for CUDA, and its own library does not
    load beside torch for the CPU. To be imported it needs the schemas of two operators.
    """
    if not _declared:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor d, Tensor s, float t) -> Tensor")
        _declared.append(library)
    return pytest.importorskip("torchvision.transforms", exc_type=ImportError)

"""Steps by the rows of CUDA, emulated, beside torch's own optimizers on the CPU.

Stock is torch's for-loop path in the same precision, and the truth the same in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_steps import (
    Steps,
    capturable_stock,
    holds,
    host_fuses,
    least_bytes,
    run,
    stock,
    tensors,
)


def options() -> Iterator[dict[str, Any]]:
    """All options of the optimizers, each with the others in some combination."""
    flags = (False, True)
    for nesterov, maximize, decay in itertools.product(flags, flags, (0.0, 0.02)):
        for momentum, dampening in ((0.9, 0.0), (0.8, 0.3), (0.0, 0.0)):
            if not nesterov or (momentum and not dampening):
                yield {
                    **{"op": "sgd_step", "nesterov": nesterov, "maximize": maximize},
                    **{"weight_decay": decay, "momentum": momentum},
                    **{"dampening": dampening},
                }
    for op, amsgrad, maximize, decay in itertools.product(
        ("adam_step", "adamw_step"), flags, flags, (0.0, 0.02)
    ):
        yield {
            **{"op": op, "amsgrad": amsgrad, "maximize": maximize},
            **{
                "weight_decay": decay,
                "betas": (0.3, 0.95) if maximize else (0.9, 0.999),
            },
        }


OPTIONS = list(options())
NAMES = ["-".join(f"{k}={v}" for k, v in o.items()) for o in OPTIONS]

SIZES = [1, 33, 700, 0]


@pytest.mark.parametrize("given", OPTIONS, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers(program: Path, given: dict[str, Any], dtype: torch.dtype) -> None:
    params, grads = tensors(SIZES, 50, dtype, seed=len(NAMES))
    steps = Steps(params=params, grads=grads, **given)
    done = run(program, steps)
    assert (done.refused, done.status) == (0, 0)
    theirs = stock(steps, dtype, foreach=False)
    if dtype == torch.float64:
        # Roundings of 50 steps, which move a parameter by at most 50 rates.
        for a, b in zip(done.params, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
        return
    holds(done.params, theirs, stock(steps, torch.float64, foreach=False))
    if given["op"] == "sgd_step" and host_fuses():
        # Torch rounds as often on a CPU that fuses multiply and add.
        assert all(map(torch.equal, done.params, theirs))


@pytest.mark.parametrize("op", ["adam_step", "adamw_step"])
@pytest.mark.parametrize("lr_dtype", [None, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_capturable(
    program: Path, op: str, lr_dtype: torch.dtype | None, dtype: torch.dtype
) -> None:
    """Steps are counted on the device, in a launch of their own behind the others."""
    params, grads = tensors([700, 0, 4099], 50, dtype, seed=3)
    steps = Steps(op, params, grads, weight_decay=0.02, capturable=True)
    steps.lr_dtype, steps.amsgrad = lr_dtype, op == "adam_step"
    steps.step_dtype = lr_dtype or torch.float32
    done = run(program, steps)
    assert (done.refused, done.status) == (0, 0)
    assert done.n_launches == 2 * 50
    assert done.counts == [50.0] * 3
    truth = stock(steps, torch.float64, foreach=False)
    holds(done.params, capturable_stock(steps, dtype), truth)
    read, written = least_bytes(steps)
    assert read <= done.bytes_read <= 1.1 * read
    assert written <= done.bytes_written <= 1.01 * written

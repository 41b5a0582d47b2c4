"""Which launches step what on CUDA, and that nothing is left out or moved twice."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import cuda_steps
import native
import pytest
import torch
from cuda_steps import (
    CHUNK_BYTES,
    DTYPES,
    ENTRY_BYTES,
    PARAMETERS,
    Steps,
    check,
    room,
    run,
    tensors,
)

FAILED = 4
"""PTAC_FAILED."""

SOME = {
    "sgd": {"op": "sgd_step", "momentum": 0.9, "weight_decay": 0.02},
    "plain-sgd": {"op": "sgd_step"},
    "adamw": {"op": "adamw_step", "weight_decay": 0.02},
    "amsgrad": {"op": "adam_step", "amsgrad": True, "weight_decay": 0.02},
}
some = pytest.mark.parametrize("given", SOME.values(), ids=SOME)


@some
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks(
    program: Path, given: dict[str, Any], shift: int, dtype: torch.dtype
) -> None:
    """Arrays that end where chunks, packs and the threads of a block do, and beside."""
    chunk, pack = CHUNK_BYTES // dtype.itemsize, 16 // dtype.itemsize
    sizes = [n + d for n in (pack, 256 * pack, chunk, 2 * chunk) for d in (-1, 0, 1)]
    params, grads = tensors(sizes, 2, dtype, seed=shift)
    steps = Steps(params=params, grads=grads, shift=shift * dtype.itemsize, **given)
    if dtype == torch.float16:
        steps.eps = 1e-3
    done = check(program, steps, n_launches=1)
    for order in (1, 7):
        steps.order = order
        again = run(program, steps)
        assert all(map(torch.equal, done.params, again.params))


@some
@pytest.mark.parametrize("has_large", [True, False], ids=["large", "small"])
@pytest.mark.parametrize("beyond", [-1, 0, 1, None], ids=str)
def test_launches(
    program: Path, given: dict[str, Any], has_large: bool, beyond: int | None
) -> None:
    """As many as tables take: around the room of one, and of a thousand parameters."""
    entries = room(given["op"], has_large)
    n = 1000 if beyond is None else entries + beyond
    params, grads = tensors([1 + i % 3 for i in range(n)], 1, torch.float32, seed=n)
    params.append(torch.empty(0))  # which takes no place
    grads[0].append(torch.empty(0))
    steps = Steps(params=params, grads=grads, has_large=has_large, **given)
    check(program, steps, n_launches=math.ceil(n / entries))


def test_many_counts(program: Path) -> None:
    """More steps than a small table counts."""
    params, grads = tensors([1] * 1000, 2, torch.float32, seed=5)
    steps = Steps("adam_step", params, grads, capturable=True, has_large=False)
    done = run(program, steps)
    assert done.counts == [2.0] * 1000
    entries = room("adam_step", has_large=False)
    counts = (PARAMETERS - 8) // 8
    assert done.n_launches == 2 * (math.ceil(1000 / entries) + math.ceil(1000 / counts))


@pytest.mark.parametrize("shift", [0, 2, 4, 14])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_grad(program: Path, shift: int, dtype: torch.dtype) -> None:
    chunk = CHUNK_BYTES // dtype.itemsize
    sizes = [0, 1, 2, 5, 9, chunk - 1, chunk, 2 * chunk + 3]
    shift = shift // dtype.itemsize * dtype.itemsize
    params = [torch.ones(n, dtype=dtype) for n in sizes]
    done = run(program, Steps("zero_grad", params, [], shift=shift))
    assert (done.refused, done.status, done.n_launches) == (0, 0, 1)
    assert not any(p.any() for p in done.params)
    assert done.bytes_read == 0
    assert done.bytes_written == sum(sizes) * dtype.itemsize


def test_zero_grad_of_many(program: Path) -> None:
    params = [torch.ones(3) for _ in range(2500)]
    done = run(program, Steps("zero_grad", params, []))
    assert done.n_launches == math.ceil(2500 / room("zero_grad", has_large=True))
    assert not any(p.any() for p in done.params)


@pytest.mark.parametrize("n", [0, 1], ids=["none", "empty"])
@pytest.mark.parametrize("op", ENTRY_BYTES)
def test_nothing_to_do(program: Path, op: str, n: int) -> None:
    params = [torch.empty(0) for _ in range(n)]
    done = run(program, Steps(op, params or [], [params] if n else []))
    assert (done.status, done.n_launches) == (0, 0)


def test_launches_that_the_driver_refuses(program: Path) -> None:
    """The row says so, and launches nothing more."""
    params, grads = tensors([2] * 100, 1, torch.float32, seed=7)
    for fail_at in (1, 2):
        steps = Steps("sgd_step", params, grads, has_large=False, fail_at=fail_at)
        done = run(program, steps)
        assert (done.status, done.n_launches) == (FAILED, fail_at)
        same = [torch.equal(a, b) for a, b in zip(done.params, params, strict=True)]
        assert same.count(True) == 100 - (fail_at - 1) * room("sgd_step", False)


@pytest.mark.long
def test_under_address_sanitizer(builder: native.Builder) -> None:
    """And its checks of undefined behaviour: arrays end where their elements do."""
    program = cuda_steps.build(builder, builder.sanitized("address"))
    for given, dtype, shift in itertools.product(SOME.values(), DTYPES, (0, 1)):
        test_chunks(program, given, shift, dtype)
    test_many_counts(program)
    for dtype, shift in itertools.product(DTYPES, (0, 2, 14)):
        test_zero_grad(program, shift, dtype)

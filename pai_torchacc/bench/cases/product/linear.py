"""Linear layers, alone and followed by an activation, for inference and training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import cycle

import torch

from pai_torchacc.bench.cases.case import Call, Case

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 128, 512)
WEIGHTS = (
    *((64, 64), (256, 256), (512, 2048), (2048, 512), (768, 768)),
    *((768, 3072), (3072, 768), (256, 64), (1024, 64), (64, 256), (64, 1024)),
    (512, 100),
)
"""As (terms, rows of the weight)."""

ISAS = ("avx2", "avx512")

IN_TURN = {1 << 17: 1 << 23, 1 << 21: 1 << 27}
"""Bytes: a network whose weights are larger than the first has more of them than the
second cache holds, or than any cache, and calls take such in turn, so many together."""

SHAPES = (
    *((m, k, n) for k, n in WEIGHTS for m in ROWS),
    (64, 256, 1000),
    (1024, 64, 64),
    (1024, 256, 256),
    (1024, 256, 1024),
    (1024, 1024, 1024),
    (4096, 64, 64),
    (4096, 256, 256),
)
"""Products as (rows of x, terms, rows of the weight)."""

SMALL = (
    *((1, 1, 1), (1, 2, 2), (2, 4, 4), (1, 4, 32), (8, 8, 8), (32, 4, 8)),
    *((4, 32, 16), (32, 13, 10), (1, 64, 128), (32, 32, 16), (16, 64, 32)),
)
THIN = ((64, 64, 10), (16, 512, 10), (32, 1000, 10), (128, 1024, 8))
"""The same of little work, and with few columns, by their work."""


OF_LARGE = (
    *("scalar", "onednn", "bf16", "bf16+amx"),
    *(f"{w}_{isa}" for w in ("dot", "stream", "packed", "turned") for isa in ISAS),
)
"""Rows that "small" chooses among, and that are not for these."""


def _by_work(shapes: tuple[tuple[int, int, int], ...]) -> Iterator[tuple[int, ...]]:
    for m, k, n in sorted(shapes, key=math.prod):
        yield m, k, n, m * k * n


def cases() -> Iterator[Case]:
    """Cases of linear_act and mm; layers are timed with their gradients."""
    for kind, shapes in (("infer_small", SMALL), ("infer_thin", THIN)):
        for m, k, n, work in _by_work(shapes):
            for act in ("", "_act"):
                make = partial(_make, m, k, n, bool(act), is_training=False)
                place = ("linear_act", kind + act, "float32", work)
                yield Case(*place, (make,), without_rows=OF_LARGE)
    for m, k, n in SHAPES:
        for act in ("", "_act"):
            for way in ("infer", "train"):
                make = partial(_make, m, k, n, bool(act), way == "train")
                others = ("linear_act_backward",)
                yield Case(
                    "linear_act", way + act, "float32", (m, k, n), (make,), others
                )
    yield from products()


def products() -> Iterator[Case]:
    """Cases of mm and addmm: with a layer's weight, and its gradients' products.

    Their sizes are those of the product: of a weight's gradient the terms are few.
    """
    for m, k, n in SHAPES:
        for kind, sizes in (("nt", (m, k, n)), ("nn", (m, n, k)), ("tn", (n, m, k))):
            yield _case("mm", kind, sizes)
        for kind in ("nt", "nn"):
            yield _case("addmm", kind, (m, k, n))
    yield from _small_sums()


def _small_sums() -> Iterator[Case]:
    """Small ones: of mm stock was as fast at most of them."""
    for m, k, n, work in _by_work(SMALL):
        for kind in ("nt", "nn"):
            make = partial(_product, "addmm", kind, (m, k, n))
            place = ("addmm", "small_" + kind, "float32", work)
            yield Case(*place, (make,), without_rows=OF_LARGE)


def _case(op: str, kind: str, sizes: tuple[int, int, int]) -> Case:
    make = partial(_product, op, kind, sizes)
    return Case(op, kind, "float32", sizes, (make,), without_rows=("scalar",))


def _n_in_turn(n_floats: int) -> int:
    n_bytes = 4 * n_floats
    together = max(
        (most for least, most in IN_TURN.items() if n_bytes >= least), default=0
    )
    return 1 + together // n_bytes


def _product(op: str, kind: str, sizes: tuple[int, int, int]) -> Call:
    m, k, n = sizes
    a = torch.randn(k, m).t() if kind[0] == "t" else torch.randn(m, k)
    b = torch.randn(n, k).t() if kind[1] == "t" else torch.randn(k, n)
    n_weights = _n_in_turn(k * n) if kind[0] == "n" else 1
    weights = cycle([b] + [torch.clone(b) for _ in range(n_weights - 1)])
    if op == "mm":
        return lambda: torch.mm(a, next(weights))
    bias = torch.randn(n)
    return lambda: torch.addmm(bias, a, next(weights))


def _layer(k: int, n: int, has_act: bool) -> torch.nn.Module:
    layer = torch.nn.Linear(k, n)
    return torch.nn.Sequential(*((layer, torch.nn.ReLU()) if has_act else (layer,)))


def _make(m: int, k: int, n: int, has_act: bool, is_training: bool) -> Call:
    net, x = _layer(k, n, has_act), torch.randn(m, k)
    if not is_training:
        others = [_layer(k, n, has_act) for _ in range(_n_in_turn(k * n) - 1)]
        nets = cycle([net.requires_grad_(False) for net in (net, *others)])
        return lambda: next(nets)(x)
    x.requires_grad_()
    grad, wanted = torch.randn(m, n), [x, *net.parameters()]
    return lambda: torch.autograd.grad(net(x), wanted, grad)

"""Saved tensors under memory reuse: the same bits, and what makes them."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import reusing
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _host, memory_reuse
from pai_torchacc.bench.workloads import WORKLOADS

WIDE = 512
"""Square tensors of 1 MiB."""


def steps(name: str, n: int) -> list[Tensor]:
    """Losses, weights and gradients of some training steps."""
    task = WORKLOADS[name].task()
    torch.manual_seed(1)
    losses = [task.train_step().detach() for _ in range(n)]
    parameters = list(task.model.parameters())
    return [*losses, *(p.detach() for p in parameters), *(p.grad for p in parameters)]


def same(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y), (x - y).abs().max()


MECHANISMS = {
    "W1": ("zero_bits", "index_narrowing"),
    "W3": (),
    "W4": ("recompute", "noise_bits", "zero_bits"),
    "W4g": ("recompute",),
    "W4ge": ("recompute", "zero_bits"),
    "W4gv": ("recompute",),
    "W5": ("zero_bits",),
    "W6": (),
}


LONG = pytest.param("W5", marks=pytest.mark.long)


@pytest.mark.parametrize("name", [n if n != "W5" else LONG for n in MECHANISMS])
def test_training_has_the_same_bits(name: str) -> None:
    n = 3 if name == "W5" else 6
    stock = steps(name, n)
    with reusing.reused() as saved:
        ours = steps(name, n)
        for mechanism in MECHANISMS[name]:
            assert saved.times(mechanism) >= n, mechanism
    same(ours, stock)
    assert reusing.current_bytes() == 0


def grads(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    leaves = [torch.randn(s, requires_grad=True) for s in shapes]
    torch.manual_seed(1)
    out = function(*leaves)
    out.sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


def padded(x: Tensor) -> Tensor:
    """Something that saves a large tensor, so that others get their turn."""
    return (x * 1.0).square()


def chain(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A function between products that save what goes in and what comes out."""

    def run(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = function(x @ w) @ w
            x = x / 30
        return x

    return run


def normalized(x: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, x.size(-1))
    return F.layer_norm(x, x.shape[-1:], weight, weight - 1, eps=1e-3)


def gated(x: Tensor) -> Tensor:
    return F.silu(x) * (x * 2)


RECOMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 2.0, 5.0),
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "relu6": F.relu6,
    "dropout of gelu": lambda x: F.dropout(F.gelu(x), 0.3),
    "dropout of softmax": lambda x: F.dropout(torch.softmax(x, -1), 0.3),
    "layer_norm": normalized,
    "gated": gated,
    "in place": lambda x: F.silu(x, inplace=True),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [WIDE, 511])
@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputed(name: str, rows: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run = chain(RECOMPUTED[name])
        shapes = ((rows, WIDE), (WIDE, WIDE))
        stock = grads(run, *shapes)
        with reusing.reused() as saved:
            same(grads(run, *shapes), stock)
            assert saved.times("recompute") >= 1
    finally:
        torch.set_num_threads(before)


NORMALIZED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "rows": ("our kernel", lambda x: x),
    "odd columns": ("our kernel", lambda x: x[:, :-3].contiguous()),
    "two dimensions": ("our kernel", lambda x: x.view(-1, 2, WIDE // 2)),
    "double": ("torch's operators", lambda x: x.double()),
    "bfloat16": ("nothing", lambda x: x.bfloat16()),
    "columns first": ("nothing", lambda x: x.t()),
}
"""What computes it again, and what is normalized."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NORMALIZED)
def test_layer_norms(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    computed_by, view = NORMALIZED[name]

    def run(x: Tensor) -> Tensor:
        for _ in range(3):
            y = view(torch.sigmoid(x))
            sizes = y.shape[1:]
            weight = torch.rand(sizes, dtype=y.dtype)
            y = F.layer_norm(y, sizes, weight, weight - 1)
            x = x + (y * y).float().mean()
        return x

    applied = []
    stock_apply = reusing.c.layer_norm_apply

    def apply(*args: Tensor) -> bool:
        applied.append(stock_apply(*args))
        return applied[-1]

    monkeypatch.setattr(reusing.c, "layer_norm_apply", apply)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        stock = grads(run, (1031, WIDE))
        for is_there in (True, False):
            if not is_there:
                monkeypatch.setattr(reusing.c, "layer_norm_matches", lambda *_: False)
            with reusing.reused() as saved:
                same(grads(run, (1031, WIDE)), stock)
                n_times = saved.times("recompute")
            assert (n_times >= 1) == (computed_by != "nothing")
            is_ours = computed_by == "our kernel" and has_kernel() and is_there
            assert (len(applied) >= 1) == is_ours
            assert all(applied)
            applied.clear()
    finally:
        torch.set_num_threads(before)


def has_kernel() -> bool:
    """Whether this CPU can: one is ((1 - 1) * 1) * 1 + 1."""
    return reusing.c.layer_norm_matches(*[torch.ones(1)] * 6)


PACKED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "relu": ("zero_bits", F.relu),
    "dropout": ("noise_bits", lambda x: F.dropout(x, 0.2)),
    "mask": ("mask_bits", lambda x: x.masked_fill(x > 0, 0.5)),
    "where": ("mask_bits", lambda x: torch.where(x > 0, x, x * 0.1)),
    "gather": ("index_narrowing", lambda x: x.gather(1, x.argsort(1))),
    "sort": ("index_narrowing", lambda x: x.sort(1).values),
    "pool": (
        "index_narrowing",
        lambda x: F.interpolate(F.max_pool2d(x[None], 2), scale_factor=2.0)[0],
    ),
    "minus zero": ("zero_bits", lambda x: -F.relu(x)),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("rows", [1024, 1023])
def test_packed(name: str, rows: int) -> None:
    mechanism, function = PACKED[name]
    run = chain(function)
    if name == "pool":
        rows = 1024
        shapes = ((2, rows, WIDE), (WIDE, WIDE))
    else:
        shapes = ((rows, WIDE), (WIDE, WIDE))
    stock = grads(run, *shapes)
    with reusing.reused() as saved:
        same(grads(run, *shapes), stock)
        assert saved.times(mechanism) >= 1


def test_small_tensors_and_small_programs_are_left_alone() -> None:
    run = chain(F.gelu)
    with reusing.reused() as saved:
        grads(run, (64, 64), (64, 64))
        assert saved.times() == 0
    with reusing.reused(least=1 << 30) as saved:
        grads(run, (WIDE, WIDE), (WIDE, WIDE))


def test_what_others_keep_is_not_dropped() -> None:
    kept = []

    def run(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = F.gelu(x @ w)
            kept.append(x)
            x = x @ w / 30
        return x

    stock = grads(run, (WIDE, WIDE), (WIDE, WIDE))
    with reusing.reused() as saved:
        same(grads(run, (WIDE, WIDE), (WIDE, WIDE)), stock)
        assert saved.times() == 0


def test_nothing_leaks() -> None:
    gc.collect()
    gc.disable()
    try:
        with reusing.reused():
            x = torch.randn(WIDE, WIDE, requires_grad=True)
            w = torch.randn(WIDE, WIDE, requires_grad=True)
            sizes = []
            for i in range(80):
                y = x
                for function in (F.gelu, F.relu, torch.sigmoid, torch.exp, F.dropout):
                    y = y + function(normalized(y) @ w / 30)
                y.mean().backward()
                x.grad = w.grad = None
                del y
                if i % 20 == 19:
                    sizes.append(len([o for o in gc.get_objects() if is_ours(o)]))
                    assert reusing.current_bytes() == 0
            assert sizes[0] == sizes[-1]
            y = torch.exp(F.relu(x @ w / 100))
            del y  # never went backward
            assert len([o for o in gc.get_objects() if is_ours(o)]) == sizes[0]
    finally:
        gc.enable()


def is_ours(thing: object) -> bool:
    return type(thing).__name__ in ("Held", "Box")


def test_exceptions_in_forward_leave_nothing() -> None:
    x = torch.randn(WIDE, WIDE, requires_grad=True)

    def run() -> None:
        y = F.relu(x * 2)
        for _ in range(4):
            y = F.gelu(y @ x)
        raise KeyError

    with reusing.reused():
        with pytest.raises(KeyError):
            run()
        gc.collect()
        assert reusing.current_bytes() == 0


class Net(nn.Module):
    """Several mechanisms at once."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.norm = nn.LayerNorm(WIDE)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + F.dropout(F.gelu(self.a(self.norm(x))), 0.1)
            x = F.relu(self.b(x))
        return x


def test_the_report_tells_bytes() -> None:
    net, x = Net(), torch.randn(2 * WIDE, WIDE)
    reusing.memory_reuse.reset(reusing.c)
    with reusing.reused():
        loss = net(x).sum()
        told = reusing.memory_reuse.saved_bytes(reusing.c)
        assert told["all"]["current"] >= 2 << 20
        assert told["all"]["current"] == sum(
            row["current"] for name, row in told.items() if name != "all"
        )
        loss.backward()
        told = reusing.memory_reuse.saved_bytes(reusing.c)
    assert told["all"]["current"] == 0
    assert told["all"]["peak"] >= 2 << 20
    reusing.memory_reuse.reset(reusing.c)
    assert reusing.memory_reuse.saved_bytes(reusing.c)["all"]["total"] == 0


def test_it_keeps_the_pool_with_its_options() -> None:
    with ptac.enable_memory_pool(cap=64 << 20), ptac.enable_memory_reuse():
        ptac.disable_memory_pool()
        assert not ptac.is_enabled("memory_pool")
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.empty(128 << 20, dtype=torch.uint8)
    assert torch.empty(128 << 20, dtype=torch.uint8).numel()


def test_the_report_says_when_nothing_was_let_go() -> None:
    with ptac.enable_memory_reuse():
        memory_reuse.reset(_host.load())
        assert "memory reuse let go of nothing: what autograd saved" in ptac.report()

"""F.dropout and nn.Dropout on the CPU: stock's bits, gradients and random stream."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import contract
import internals
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc import _C

OPS = ("dropout", "dropout_backward")

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38, -3e38]

rows = pytest.mark.parametrize("row", switching.runnable_rows("dropout"))


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(seed))
    n = min(len(SPECIAL), x.numel())
    x.view(-1)[:n] = torch.tensor(SPECIAL)[:n]
    return x


def seeded(run: Callable[[], Any]) -> Any:
    """What it gives from a known state, and the state afterwards."""
    torch.manual_seed(11)
    return run(), torch.get_rng_state()


def same(run: Callable[[], Any], row: str | None = None) -> switching.Hits:
    """Stock's and ours are alike to the bit; what dropout has counted."""
    stock = seeded(run)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("dropout")
        contract.exactly(seeded(run), stock)
    return hits


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999, 1 / 3, 1e-9])
@rows
def test_results_and_gradients_are_stocks(row: str, p: float) -> None:
    def run() -> list[Tensor]:
        found = []
        for sizes in [(1,), (7, 9), (3, 5, 40), (0, 4), (700,), (40, 1000)]:
            x = numbers(*sizes).requires_grad_()
            y = F.dropout(x, p)
            grad = numbers(*sizes, seed=1)
            found += [F.dropout(x.detach(), p), y.detach()]
            found += torch.autograd.grad(y, x, grad, retain_graph=True)
            found += torch.autograd.grad(y.sum(), x)
        return found

    backward = switching.hits("dropout_backward")
    hits = same(run, row)
    assert (hits.accelerated, hits.forwarded) == (10, {"empty": 2})
    assert (backward.accelerated, backward.forwarded) == (6, {"layout": 4})


def test_modules_and_modes() -> None:
    x = numbers(50, 30)

    def run() -> list[Tensor]:
        found = []
        for module in (nn.Dropout(0.2), nn.Sequential(nn.ReLU(), nn.Dropout(0.2))):
            found += [module(x), module.eval()(x), module.train()(x)]
            found.append(copy.deepcopy(module)(x))
            with torch.inference_mode():
                found.append(module(x).clone())
            with torch.no_grad():
                found.append(module(x))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True)
        for i, w in enumerate(layer.parameters()):
            nn.init.normal_(w, generator=torch.Generator().manual_seed(i))
        return [*found, layer(numbers(2, 5, 8, seed=3)[:, 1:])]

    hits = same(run)
    assert hits.accelerated >= 10


def test_the_node_looks_like_torchs() -> None:
    x = torch.zeros(5, requires_grad=True)
    stock = F.dropout(x, 0.5)
    with switching.accelerated(*OPS):
        hits = switching.hits("dropout")
        y = F.dropout(x, 0.5)
        assert hits.accelerated == 1
    assert y.grad_fn.name() == stock.grad_fn.name() == "MulBackward0"
    assert y.grad_fn.next_functions[0][0].variable is x
    assert y.requires_grad
    assert not y.is_leaf


def test_second_derivatives() -> None:
    def run() -> list[Tensor]:
        x = numbers(60)[8:].requires_grad_()
        y = F.dropout(x * x, 0.3)
        (g,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.sum(), x)]

    assert same(run).accelerated == 1


def test_graphs_that_are_kept() -> None:
    with switching.accelerated(*OPS):
        x = torch.ones(400, requires_grad=True)
        y = F.dropout(x, 0.5)
        twice = [torch.autograd.grad(y, x, x, retain_graph=True)[0] for _ in range(2)]
        assert torch.equal(*twice)
        assert torch.equal(twice[0], y)
        torch.autograd.grad(y, x, x)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, x, x)
    assert torch.equal(y.detach().add_(1), y)  # a result, not a view of anything


def test_in_place() -> None:
    def run() -> list[Any]:
        x = numbers(300)
        y = F.dropout(x, 0.4, inplace=True)
        found = [x, y is x, x._version]
        z = numbers(300, seed=2).requires_grad_()
        w = z * 2
        F.dropout(w, 0.4, inplace=True)
        found += [w.detach(), *torch.autograd.grad(w, z, torch.ones(300))]
        view = numbers(4, 100)[1:3]
        return [*found, F.dropout(view, 0.1, True, True), nn.Dropout(0.3, True)(view)]

    hits = same(run)
    assert hits.accelerated == 3
    assert hits.forwarded == {"gradient not supported": 1}
    with switching.accelerated(*OPS):
        leaf = torch.ones(400, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf"):
            F.dropout(leaf, 0.5, inplace=True)
        assert torch.equal(leaf, torch.ones(400))
        x = torch.ones(400, requires_grad=True)
        saved = x.detach().clone()
        y = (x * saved).sum()
        F.dropout(saved, 0.5, inplace=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


class Sub(Tensor):
    """A class of a program's own."""


def summed(x: Tensor) -> Tensor:
    return F.dropout(x, 0.2).pow(2).sum()


def autocasting() -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.dropout(numbers(90), 0.2)


def mapped() -> Tensor:
    f = torch.vmap(lambda x: F.dropout(x, 0.2), randomness="different")
    found: Tensor = f(numbers(3, 90))
    return found


def tangent() -> list[Tensor]:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(numbers(90), numbers(90, seed=5))
        found = forward_ad.unpack_dual(F.dropout(dual, 0.2))
        return [found.primal, found.tangent]


def hooked() -> list[Tensor]:
    x, seen = numbers(90).requires_grad_(), []

    def pack(t: Tensor) -> Tensor:
        seen.append(t.detach().clone())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = F.dropout(x, 0.2)
    return [*seen, *torch.autograd.grad(y, x, numbers(90, seed=1))]


def profiled() -> list[Any]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        y = F.dropout(numbers(90), 0.2)
    return [y, sorted(e.key for e in p.key_averages() if "dropout" in e.key)]


FORWARDED: dict[str, tuple[str, Callable[[], Any]]] = {
    "strided": ("layout", lambda: F.dropout(numbers(20, 30).t(), 0.2)),
    "images in NHWC": (
        "layout",
        lambda: F.dropout(
            numbers(2, 3, 8, 8).to(memory_format=torch.channels_last), 0.2
        ),
    ),
    "expanded": ("layout", lambda: F.dropout(numbers(5, 1).expand(5, 60), 0.2)),
    "double": ("dtype", lambda: F.dropout(numbers(90).double(), 0.2)),
    "bfloat16": ("dtype", lambda: F.dropout(numbers(90).bfloat16(), 0.2)),
    "nothing dropped": ("argument", lambda: F.dropout(numbers(90), 0.0)),
    "all dropped": ("argument", lambda: F.dropout(numbers(90), 1.0)),
    "an int": ("argument", lambda: F.dropout(numbers(90), 1)),
    "next to nothing": ("argument", lambda: F.dropout(numbers(90), 1e-30)),
    "a subclass": (
        "tensor subclass",
        lambda: F.dropout(numbers(90).as_subclass(Sub), 0.2).as_subclass(Tensor),
    ),
    "autocast": ("mode or transform active", autocasting),
    "vmap": ("tensor subclass", mapped),
    "grad": ("tensor subclass", lambda: torch.func.grad(summed)(numbers(90)[8:])),
    "tangents": ("mode or transform active", tangent),
    "hooks": ("hooks", hooked),
    "profiler": ("profiler", profiled),
}


@pytest.mark.parametrize("what", FORWARDED)
def test_what_stock_does(what: str) -> None:
    reason, run = FORWARDED[what]
    hits = same(run)
    assert not hits.accelerated
    assert hits.forwarded == {reason: 1}


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_wrong_probabilities_get_torchs_own_error(p: float) -> None:
    with switching.accelerated(*OPS):
        for function in (F.dropout, torch._VF.dropout, torch.dropout):
            with pytest.raises((ValueError, RuntimeError), match="between 0 and 1"):
                function(torch.zeros(400), p, True)
        with pytest.raises(TypeError, match="must be Tensor"):
            F.dropout([1.0], 0.5)


@pytest.mark.parametrize("preserves", [True, False])
@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpoints(preserves: bool, is_reentrant: bool) -> None:
    def run() -> list[Tensor]:
        x = numbers(800)[8:].requires_grad_()
        y = checkpoint(
            lambda x: F.dropout(torch.tanh(x), 0.3) * 2,
            x,
            use_reentrant=is_reentrant,
            preserve_rng_state=preserves,
        )
        between = torch.rand(3)
        return [y.detach(), between, *torch.autograd.grad(y.sum(), x)]

    if not is_reentrant:
        same(run)
        return
    calls = lambda: [t.detach() for t in reentrant(preserves)]  # noqa: E731
    same(calls)


def reentrant(preserves: bool) -> list[Tensor]:
    """With backward(): reentrant checkpoints know no autograd.grad()."""
    x = numbers(800)[8:].requires_grad_()
    y = checkpoint(
        lambda x: F.dropout(torch.tanh(x), 0.3),
        x,
        use_reentrant=True,
        preserve_rng_state=preserves,
    )
    y.sum().backward()
    return [y, x.grad]


def test_shadow_checks_draw_once() -> None:
    def run() -> list[Tensor]:
        x = numbers(900).requires_grad_()
        y = F.dropout(x, 0.3)
        found = [y.detach(), F.dropout(x.detach(), 0.2)]
        return [*found, *torch.autograd.grad(y, x, numbers(900, seed=1))]

    stock = seeded(run)
    with switching.accelerated(*OPS, verify=1):
        hits = [switching.hits(op) for op in OPS]
        contract.exactly(seeded(run), stock)
        assert [h.accelerated for h in hits] == [2, 1]
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


def test_shadow_checks_of_calls_that_no_row_serves_draw_once() -> None:
    def run() -> list[Tensor]:
        x = numbers(900)
        return [F.dropout(x, 0.3), F.dropout(x.requires_grad_(), 0.2).detach()]

    stock = seeded(run)
    try:
        with switching.accelerated(*OPS, verify=1):
            hits = switching.hits("dropout")
            with ptac.disabled():
                contract.exactly(seeded(run), stock)
            assert hits.forwarded == {"disabled in this thread": 2}
            internals.inject_failure("dropout")
            contract.exactly(seeded(run), stock)
            assert hits.failed == 1
    finally:
        internals.reset_quarantine()


@pytest.mark.parametrize("verify", [1, 10**6])
def test_shadow_checks_take_no_number_back(
    verify: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other threads', which draw whenever the generator's state has been read."""
    drawn: list[tuple[float, ...]] = []
    state = torch.get_rng_state

    def draw() -> None:
        drawn.append(tuple(torch.rand(2, dtype=torch.float64).tolist()))

    def state_before_another_draws() -> Tensor:
        found = state()
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        return found

    with switching.accelerated(*OPS, verify=verify):
        hits = switching.hits("dropout")
        with monkeypatch.context() as patched:
            patched.setattr(torch, "get_rng_state", state_before_another_draws)
            for _ in range(3):
                F.dropout(numbers(900), 0.3)
                draw()
        assert hits.accelerated == (0 if verify == 1 else 3)
        assert hits.forwarded == ({"argument": 3} if verify == 1 else {})
    assert len(drawn) == len(set(drawn)) == (9 if verify == 1 else 3)
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


def test_a_row_that_breaks_has_drawn_nothing() -> None:
    def run() -> Tensor:
        return F.dropout(numbers(500), 0.3)

    stock = seeded(run)
    try:
        with switching.accelerated(*OPS):
            hits = switching.hits("dropout")
            internals.inject_failure("dropout")
            contract.exactly(seeded(run), stock)
            assert hits.failed == 1
    finally:
        internals.reset_quarantine()


def test_scripts_and_traces() -> None:
    def compiled() -> list[Any]:
        torch.jit._state._clear_class_state()
        script = torch.jit.script(nn.Dropout(0.3))
        file = io.BytesIO()
        torch.jit.save(script, file)
        x = numbers(700)
        return [script(x), str(script.graph).count("aten::dropout")]

    with switching.accelerated(*OPS):
        ours = seeded(compiled)
    contract.exactly(ours, seeded(compiled))


def test_dynamo_sees_torchs_function() -> None:
    program = """
import torch, switching
import torch.nn.functional as F
torch.manual_seed(0)
def f(x):
    return F.dropout(x, 0.3) * 2
x = torch.randn(900)
seen = []
def backend(module, inputs):
    seen.append(str(module.graph))
    return module.forward
expected = torch.compile(f, backend=backend)(x)
torch._dynamo.reset()
with switching.accelerated("dropout"):
    torch.manual_seed(0); x = torch.randn(900)
    assert torch.equal(torch.compile(f, backend=backend, fullgraph=True)(x), expected)
assert len(seen) == 2 and seen[0] == seen[1], seen
"""
    switching.python(program)


def test_off_is_off() -> None:
    assert "dropout" not in vars(torch._VF)
    with switching.accelerated(*OPS):
        kept = torch._VF.dropout
        assert kept is not torch.dropout
    assert torch._VF.dropout is torch.dropout
    assert "dropout_" not in vars(torch._VF)
    hits = switching.hits("dropout")
    torch.manual_seed(1)
    expected = torch.dropout(torch.ones(500), 0.5, True)
    torch.manual_seed(1)
    assert torch.equal(kept(torch.ones(500), 0.5, True), expected)
    assert not hits.accelerated


def test_switching_while_threads_train() -> None:
    results: list[Tensor] = []

    def train() -> None:
        for _ in range(150):
            x = torch.ones(600, requires_grad=True)
            y = F.dropout(x, 0.5)
            y.backward(torch.ones(600))
            results.append(torch.stack([y.detach(), x.grad]))

    threads = [threading.Thread(target=train) for _ in range(2)]
    with switching.pins(OPS):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            ptac.enable(include=OPS[:1])
            ptac.disable()
    assert len(results) == 300
    for y, grad in results:
        assert torch.equal(y, grad)
        assert set(y.tolist()) <= {0.0, 2.0}

"""Cross-entropy behind F.cross_entropy and the loss modules, at level close."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

OPS = ("cross_entropy", "cross_entropy_backward")
SHAPES = [(1, 1), (1, 7), (5, 2), (128, 10), (33, 1000), (9, 5003)]


def options() -> list[dict[str, Any]]:
    combinations = itertools.product(
        ("mean", "sum", "none"), (0.0, 0.1), (False, True), ("index", "probability")
    )
    return [
        {"reduction": r, "label_smoothing": s, "weight": w, "target": t}
        for r, s, w, t in combinations
    ]


def name_of(value: Any) -> str | None:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else None


def loss_case(
    shape: tuple[int, int], options: dict[str, Any], scale: float = 3.0
) -> contract.Case:
    n, classes = shape

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(n, classes, dtype=dtype, scale=scale).requires_grad_()
        weight = torch.rand(classes).to(dtype) + 0.1
        probabilities = torch.rand(n, classes).softmax(1).to(dtype)
        target: Tensor = torch.randint(0, classes, (n,))
        if n > 3:
            target[::3] = -100
        if options["target"] == "probability":
            target = probabilities
        loss = F.cross_entropy(
            x,
            target,
            weight=weight if options["weight"] else None,
            reduction=options["reduction"],
            label_smoothing=options["label_smoothing"],
        )
        (grad,) = torch.autograd.grad(loss, x, torch.ones_like(loss) * 0.7)
        return {"loss": loss, "gradient": grad}

    return case


@pytest.mark.parametrize("row", switching.runnable_rows("cross_entropy"))
@pytest.mark.parametrize("options", options(), ids=name_of)
def test_contract(options: dict[str, Any], row: str) -> None:
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(loss_case((5, 37), options))
        assert all(h.accelerated == contract.SEEDS for h in hits), hits


@pytest.mark.parametrize("scale", [1e-4, 30.0, 1e4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract_over_shapes_and_magnitudes(
    shape: tuple[int, int], scale: float
) -> None:
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        contract.hold(loss_case(shape, options()[0], scale))
        assert hits.accelerated > 0


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_non_finite(bad: float) -> None:
    x = torch.randn(6, 40)
    x[1, 3] = x[2] = x[4, 5] = bad
    y = torch.tensor([3, 3, 3, 2, 5, -100])
    for reduction in ("none", "mean"):

        def run(reduction: str = reduction) -> dict[str, Tensor]:
            z = x.clone().requires_grad_()
            loss = F.cross_entropy(z, y, reduction=reduction)
            loss.sum().backward()
            return {"loss": loss.detach(), "gradient": z.grad}

        stock = run()
        with switching.accelerated(*OPS):
            hits = switching.hits(OPS[0])
            ours = run()
            assert hits.accelerated == 1
        for name, theirs in stock.items():
            torch.testing.assert_close(ours[name], theirs, equal_nan=True)


def test_all_targets_ignored() -> None:
    """The mean over nothing is NaN, as with stock."""
    x, y = torch.randn(4, 9), torch.full((4,), -100)
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        assert F.cross_entropy(x, y).isnan()
        assert F.cross_entropy(x, y, reduction="sum") == 0
        assert hits.accelerated == 2


FORWARDED: dict[str, tuple[Callable[[], Any], str]] = {
    "float64": (lambda: (torch.randn(4, 5).double(), torch.ones(4).long()), "dtype"),
    "bfloat16": (lambda: (torch.randn(4, 5).bfloat16(), torch.ones(4).long()), "dtype"),
    "images": (lambda: (torch.randn(2, 5, 3), torch.ones(2, 3).long()), "shape"),
    "one row": (lambda: (torch.randn(5), torch.tensor(2)), "shape"),
    "no rows": (lambda: (torch.randn(0, 5), torch.ones(0).long()), "empty"),
    "strided": (lambda: (torch.randn(5, 4).t(), torch.ones(4).long()), "layout"),
    "target wants gradient": (
        lambda: (torch.randn(4, 5), torch.rand(4, 5).requires_grad_()),
        "gradient not supported",
    ),
    "int32 target": (lambda: (torch.randn(4, 5), torch.ones(4).int()), "dtype"),
    "wrong batch": (lambda: (torch.randn(4, 5), torch.ones(3).long()), "argument"),
}


@pytest.mark.parametrize("name", FORWARDED)
def test_is_forwarded_with_its_reason(name: str) -> None:
    make, reason = FORWARDED[name]
    x, y = make()

    def run() -> Any:
        try:
            return F.cross_entropy(x, y)
        except (RuntimeError, ValueError, IndexError) as error:
            return str(error)

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = run()
        assert (hits.accelerated, hits.forwarded) == (0, {reason: 1})
    contract.exactly(ours, stock)


@pytest.mark.parametrize("target", [7, -3, 5, 2**40])
def test_targets_out_of_range_are_torchs_own_error(target: int) -> None:
    x, y = torch.randn(4, 5, requires_grad=True), torch.tensor([1, target, 0, 2])
    with pytest.raises((RuntimeError, IndexError)) as stock:
        F.cross_entropy(x, y)
    with switching.accelerated(*OPS):
        with pytest.raises((RuntimeError, IndexError)) as ours:
            F.cross_entropy(x, y)
        with pytest.raises((RuntimeError, IndexError)), torch.no_grad():
            F.cross_entropy(x, y)
    assert (type(ours.value), str(ours.value)) == (type(stock.value), str(stock.value))


def test_every_way_there() -> None:
    """Modules, names imported before, deprecated arguments."""
    x, y = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    kept = F.cross_entropy
    calls: list[Callable[[], Tensor]] = [
        lambda: kept(x, y),
        lambda: nn.CrossEntropyLoss()(x, y),
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=2)(x, y),
        lambda: torch.nn.functional.cross_entropy(input=x, target=y, reduction="sum"),
        lambda: torch._C._nn.cross_entropy_loss(x, y),
    ]
    stock = [call() for call in calls]
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = [call() for call in calls]
        assert hits.accelerated == len(calls)
    torch.testing.assert_close(ours, stock)


def test_logits_may_be_overwritten() -> None:
    """As with stock, whose softmax keeps its result and not its input."""

    def run() -> Tensor:
        torch.manual_seed(3)
        w = torch.randn(6, 5, requires_grad=True)
        x = w * 2
        loss = F.cross_entropy(x, torch.tensor([0, 1, 2, 3, 4, 0]))
        x.detach().zero_()
        loss.backward()
        return w.grad

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


def test_gradients_of_gradients() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    y = torch.tensor([0, 4, -100, 2])
    for target, extra in (
        (y, {}),
        (y, {"weight": torch.rand(5), "label_smoothing": 0.2}),
        (torch.rand(4, 5), {"reduction": "sum"}),
    ):

        def run(target: Tensor = target, extra: Any = extra) -> list[Tensor]:
            loss = F.cross_entropy(x, target, **extra)
            (g,) = torch.autograd.grad(loss, x, create_graph=True)
            return [g.detach(), *torch.autograd.grad(g.pow(2).sum(), x)]

        stock = run()
        with switching.accelerated(*OPS):
            hits = switching.hits(OPS[0])
            torch.testing.assert_close(run(), stock)
            assert hits.accelerated == 1


@pytest.mark.parametrize("op", ["log_softmax", "log_softmax_backward"])
@pytest.mark.parametrize("shape", [(5,), (4, 10), (33, 1000), (2, 3, 70)], ids=str)
def test_log_softmax(op: str, shape: tuple[int, ...]) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*shape, dtype=dtype, scale=3).requires_grad_()
        y = torch.log_softmax(x, -1)
        (grad,) = torch.autograd.grad(y, x, contract.draw(*shape, dtype=dtype))
        return {"y": y, "gradient": grad}

    for row in switching.runnable_rows(op):
        with switching.accelerated(op, row=row):
            hits = switching.hits(op)
            contract.hold(case)
            assert hits.accelerated > 0


def test_the_softmax_that_backward_writes_over_counts_a_version() -> None:
    x, y = torch.randn(64, 10, requires_grad=True), torch.randint(0, 10, (64,))
    with switching.accelerated("cross_entropy", "cross_entropy_backward"):
        loss = F.cross_entropy(x, y)
        p = loss.grad_fn.saved_tensors[0]
        before = p._version
        loss.backward()
    assert p._version == before + 1


def test_pickles_by_torchs_name() -> None:
    stock = torch._C._nn.cross_entropy_loss
    with switching.accelerated(*OPS):
        stand_in = torch._C._nn.cross_entropy_loss
        assert stand_in is not stock
        pickled = pickle.dumps(stand_in)
        assert pickle.loads(pickled) is stand_in
    assert pickle.loads(pickled) is stock


TABLE = """op,kind,dtype,threads,work,row,ratio,stock_us
cross_entropy,short,float32,1,640,{row},2.0,10
"""


class Tagged(Tensor):
    """A subclass that changes nothing."""


def test_small_losses_keep_their_reason(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE.format(row=switching.best_row("cross_entropy")))
    small, large = torch.randn(8, 4), torch.randn(64, 10)
    y = torch.zeros(64, dtype=torch.int64)
    hits = switching.hits("cross_entropy")

    def loss(x: Tensor) -> tuple[int, dict[str, int]]:
        served, before = hits.accelerated, dict(hits.forwarded)
        F.cross_entropy(x, y[: len(x)])
        return hits.accelerated - served, {
            why: n - before.get(why, 0)
            for why, n in hits.forwarded.items()
            if n > before.get(why, 0)
        }

    try:
        ptac.enable("operator_fusion", calibration=str(table))
        assert loss(small) == (0, {"not measured faster": 1})
        assert loss(large) == (1, {})
        assert loss(small.as_subclass(Tagged)) == (0, {"tensor subclass": 1})
        with ptac.disabled():
            assert loss(small) == (0, {"disabled in this thread": 1})
        ptac.enable("operator_fusion", calibration=str(table), exclude=OPS)
        assert loss(small) == (0, {"excluded": 1})
    finally:
        ptac.disable()


def test_a_gradient_whose_row_does_not_exist() -> None:
    """A row that nobody has is not said to have broken."""
    p = torch.rand(8, 5)
    target = torch.randint(0, 5, (8,))
    hits = switching.hits(OPS[1])
    with switching.accelerated(*OPS):
        made = _C.cross_entropy_backward(
            p, target, None, 1, -100, 0.0, "nobody's", torch.tensor(1.0), False
        )
    assert made is None
    assert hits.forwarded == {"gradient not supported": 1}


def test_want_of_memory_is_the_reason_where_it_is() -> None:
    """The softmax does not fit under the pool's limit; stock's tensors do not."""
    program = """
import torch, switching
import torch.nn.functional as F
import pai_torchacc as ptac
x = torch.randn(4096, 4096, requires_grad=True)
target = torch.zeros(4096, dtype=torch.int64)
with switching.accelerated("cross_entropy"), ptac.enable_memory_pool(cap=8 << 20):
    hits = switching.hits("cross_entropy")
    try:
        F.cross_entropy(x, target)
    except RuntimeError:
        pass
    assert hits.forwarded == {"no memory to work in": 1}, hits
"""
    switching.python(program)

"""Functions of torch that are entered: whose numbers, who sees it, and the way back."""

from __future__ import annotations

import operator
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import calling
import opinfo
import pytest
import switching
import torch
from calling import Functions, Operators
from torch import Tensor, nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

import pai_torchacc as ptac
from pai_torchacc import _C

POINTWISE, PRODUCT = "small_pointwise", "mm"
ROWS = switching.runnable_rows(POINTWISE)
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "torch.add": torch.add,
    "torch.sub": torch.sub,
    "torch.mul": torch.mul,
    "torch.div": torch.div,
    "Tensor.add": lambda x, y: x.add(y),
    "Tensor.sub": lambda x, y: x.sub(y),
    "Tensor.mul": lambda x, y: x.mul(y),
    "Tensor.div": lambda x, y: x.div(y),
    "Tensor.__add__": operator.add,
    "Tensor.__sub__": operator.sub,
    "Tensor.__mul__": operator.mul,
    "Tensor.__truediv__": operator.truediv,
}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    assert not any(_C.entries().values())


def on(op: str = POINTWISE, row: str | None = None) -> Any:
    return switching.accelerated(op, row=row or switching.best_row(op))


def special(shape: tuple[int, ...], seed: int) -> Tensor:
    """Numbers of all kinds, NaN, infinities, zeros of both signs and denormals too."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-40])
    flat = x.view(-1)
    at = torch.randperm(flat.numel(), generator=generator)[: len(odd)]
    flat[at] = odd[: len(at)]
    return x


def bits(x: Tensor) -> list[int]:
    whole = torch.where(x.isnan(), torch.nan, x) if x.is_floating_point() else x
    return whole.reshape(-1).contiguous().view(torch.int32).tolist()


def both(call: Callable[[], Tensor], row: str | None = None) -> int:
    """How many calls a row took; the bits are stock's."""
    with torch.no_grad():
        stock = call()
        with on(row=row):
            hits = switching.hits(POINTWISE)
            ours = call()
            taken = hits.accelerated
    assert ours.dtype == stock.dtype
    assert ours.stride() == stock.stride()
    assert bits(ours) == bits(stock)
    return taken


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("shape", [(1,), (), (7,), (3, 5), (64, 17), (2, 3, 4, 5)])
def test_relu(row: str, shape: tuple[int, ...]) -> None:
    x = special(shape, 0)
    for call in (torch.relu, torch.Tensor.relu, torch.nn.functional.relu):
        assert both(lambda call=call: call(x), row) == 1


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "one channel": lambda: torch.randn(2, 1, 4, 4).to(
        memory_format=torch.channels_last
    ),
    "one pixel": lambda: torch.randn(2, 8, 1, 1).to(memory_format=torch.channels_last),
    "a row": lambda: torch.randn(1, 5).t(),
    "turned": lambda: torch.rand(1, 8, 1).transpose(1, 2),
    "of one batch": lambda: torch.randn(1, 4, 5).transpose(0, 1),
    "one element": lambda: torch.randn(3, 3)[1:2, 2:3],
    "expanded": lambda: torch.randn(1).expand(1, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_one_element(name: str) -> None:
    """Contiguous, with strides that no new tensor has: stock's result has them, too."""
    x = LAYOUTS[name]()
    for call in (
        *(lambda: torch.relu(x), lambda: x + x, lambda: x * 2.0, lambda: 1 + x),
        *(lambda: x / 3, lambda: x - 0.5, lambda: x * torch.ones_like(x)),
    ):
        both(call)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_two(name: str, row: str) -> None:
    of = FUNCTIONS[name]
    for shape in ((1,), (), (7,), (3, 5), (64, 17)):
        x, y = special(shape, 1), special(shape, 2)
        taken = [
            both(partial(of, x, other), row)
            for other in (
                *(y, 0.1, 3, -2.5, 0, 1 << 24, -(2**24) - 1, 1e-45),
                *(2**54 + 2**30 + 1, 2**60 + 2**36 + 1, -(2**63)),
            )
        ]
        assert taken == [1] * len(taken)


def test_turned_operators() -> None:
    x = special((5, 9), 3)
    assert both(lambda: 0.3 + x) == 1
    assert both(lambda: 3 * x) == 1
    assert both(lambda: 1 - x) == 0


NOT_OURS: dict[str, Callable[[Tensor], Any]] = {
    "alpha": lambda x: torch.add(x, x, alpha=2),
    "a large number": lambda x: x + 1e300,
    "a huge int": lambda x: x + 2**70,
    "an infinite number": lambda x: x + float("inf"),
    "a bool": lambda x: x + True,
    "a complex number": lambda x: x + 1j,
    "broadcast": lambda x: x + x[0],
    "broadcast to more": lambda x: x[:1] + x,
    "another dtype": lambda x: x.double() + 1,
    "two dtypes": lambda x: x + x.double(),
    "integers": lambda x: x.int() + 1,
    "a view with gaps": lambda x: torch.relu(x[:, ::2]),
    "transposed": lambda x: torch.relu(x.t()),
    "many elements": lambda x: torch.relu(x.repeat(2000, 3)),
    "none": lambda x: torch.relu(x[:0]),
    "keywords": lambda x: torch.relu(input=x),
    "an output": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "a list": lambda x: torch.relu(x.tolist()),
    "nothing": lambda x: torch.relu(),
    "text": lambda x: x + "text",
    "rounding": lambda x: torch.div(x, 2, rounding_mode="floor"),
    "a negative view": lambda x: torch.relu(torch._neg_view(x)),
    "a subclass": lambda x: torch.relu(nn.Buffer(x)) + Marked(x),
    "a meta tensor": lambda x: torch.relu(x.to("meta")).shape,
    "sparse": lambda x: (x.to_sparse() * 2).to_dense(),
    "vectors": lambda x: torch.matmul(x[0], x[0]),
    "many matrices": lambda x: torch.matmul(x[None], x.t()),
    "sizes that do not fit": lambda x: x @ x,
    "no columns": lambda x: x @ x.t()[:, :0],
}


class Marked(Tensor):
    @staticmethod
    def __new__(cls, x: Tensor) -> Marked:
        return x.as_subclass(cls)


def found(call: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        with torch.no_grad():
            y = call(x.clone())
    except Exception as error:
        return type(error), str(error)
    return (type(y), y.dtype, str(y)) if isinstance(y, Tensor) else y


@pytest.mark.parametrize("name", NOT_OURS)
def test_other_calls_are_torchs(name: str) -> None:
    x = special((4, 6), 5)
    stock = found(NOT_OURS[name], x)
    with on():
        assert found(NOT_OURS[name], x) == stock


def test_gradients_are_torchs() -> None:
    x = torch.randn(4, 4, requires_grad=True)

    def program() -> list[Tensor]:
        y = torch.relu((x @ x.t() + 0.5) * 2 - x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return [y.detach(), g, *torch.autograd.grad(g.sum(), x)]

    stock = program()
    with on():
        hits = switching.hits(POINTWISE)
        ours = program()
        assert hits.forwarded["gradient not supported"] >= 4
        with torch.no_grad():
            before = hits.accelerated
            assert not (x + 1).requires_grad
            assert hits.accelerated == before + 1
    for a, b in zip(ours, stock, strict=True):
        assert torch.equal(a, b)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "torch.matmul": torch.matmul,
    "torch.mm": torch.mm,
    "Tensor.matmul": lambda a, b: a.matmul(b),
    "Tensor.mm": lambda a, b: a.mm(b),
    "@": operator.matmul,
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 4, 4), (3, 17, 5), (1, 100, 64)])
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
def test_products(name: str, sizes: tuple[int, int, int], order: str) -> None:
    m, k, n = sizes
    a = torch.randn(k, m).t() if order[0] == "t" else torch.randn(m, k)
    b = torch.randn(n, k).t() if order[1] == "t" else torch.randn(k, n)
    exact = a.double() @ b.double()
    for row in switching.runnable_rows(PRODUCT):
        if row.partition("_")[0] not in ("small", "packed", "scalar"):
            continue
        with torch.no_grad(), on(PRODUCT, row):
            hits = switching.hits(PRODUCT)
            y = PRODUCTS[name](a, b)
            assert hits.accelerated == 1
        bound = 4 * k * 2**-24 * (a.abs().double() @ b.abs().double())
        assert ((y.double() - exact).abs() <= bound + 1e-30).all()


def test_the_articles_expression() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)

    def program() -> Tensor:
        return torch.relu(torch.matmul(x, y.T) + 0.5)

    with torch.no_grad():
        stock = program()
        with switching.accelerated(POINTWISE, PRODUCT):
            counted = [switching.hits(op) for op in (POINTWISE, PRODUCT)]
            ours = program()
            assert [h.accelerated for h in counted] == [2, 1]
    torch.testing.assert_close(ours, stock)


def test_functions_stay_what_they_are() -> None:
    relu, add = torch.relu, torch.Tensor.__add__
    with on():
        assert torch.relu is relu
        assert torch.Tensor.__add__ is add
        assert torch.relu.__name__ == "relu"
        assert pickle.loads(pickle.dumps(relu)) is relu
        assert all(_C.entries().values()), _C.entries()
        hits = switching.hits(POINTWISE)
        relu(torch.ones(3))
        assert hits.accelerated == 1
    hits = switching.hits(POINTWISE)
    relu(torch.ones(3))
    assert (hits.accelerated, hits.forwarded) == (0, {})


@pytest.mark.parametrize("mode", [Functions, Operators])
def test_modes_see_everything(mode: Callable[[], Any]) -> None:
    def program() -> list[Any]:
        x = torch.ones(3, 3)
        with torch.no_grad(), mode() as seeing:
            torch.relu(x @ x + 1)
        return seeing.seen

    stock = program()
    with on():
        assert program() == stock


def test_profilers_tracers_and_compilers_see_everything() -> None:
    x = torch.randn(3, 3)

    def call(x: Tensor) -> Tensor:
        return torch.relu(x @ x + 1)

    def program() -> Any:
        torch._dynamo.reset()
        with torch.no_grad():
            with torch.profiler.profile() as seen:
                call(x)
            events = [e.name for e in seen.events() if e.name.startswith("aten::")]
            traced = str(torch.jit.trace(call, x).graph)
            graph = str(torch.fx.symbolic_trace(call).graph)
            compiled = torch.compile(call, backend="eager", fullgraph=True)(x)
            mapped = torch.func.vmap(call)(x[None])
        return events, traced, graph, compiled.tolist(), mapped.tolist()

    stock = program()
    with on():
        assert program() == stock


def test_autocast_inference_mode_and_forward_mode() -> None:
    x = torch.randn(3, 3)

    def program() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            a = (x @ x + 1).dtype
        with torch.inference_mode():
            b = torch.relu(x + 1)
        with torch.autograd.forward_ad.dual_level(), torch.no_grad():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            c = torch.autograd.forward_ad.unpack_dual(dual * 2).tangent
        return a, b.is_inference(), b.tolist(), None if c is None else c.tolist()

    stock = program()
    with on():
        assert program() == stock


def test_toggled_while_threads_call() -> None:
    x = torch.randn(4, 4)
    expected = torch.relu(x + 1) * 2

    def is_right() -> bool:
        return torch.equal(torch.relu(x + 1) * 2, expected)

    assert calling.hold_while_toggled(is_right, on)


def test_switched_on_twice() -> None:
    """The second time overrides are added, of an operator that an entry leads to."""
    x = torch.randn(4, 4)
    with ptac.enable_operator_fusion([POINTWISE]), torch.no_grad():
        x @ x
        with switching.accelerated(PRODUCT, POINTWISE):
            hits = switching.hits(PRODUCT)
            x @ x
            torch.matmul(x, x)
            assert (hits.accelerated, hits.forwarded) == (2, {})
            assert all(_C.entries().values())


def test_nothing_is_left_behind() -> None:
    x = torch.randn(4, 4)
    with torch.no_grad(), on():
        torch.relu(x + 1)
        counts = [sys.getrefcount(o) for o in (x, torch.relu, 0.5)]
        for _ in range(1000):
            torch.relu(x + 0.5)
        assert [sys.getrefcount(o) for o in (x, torch.relu, 0.5)] == counts


def test_without_the_operator_the_calls_are_torchs() -> None:
    with ptac.enable_operator_fusion(["cross_entropy"]), torch.no_grad():
        hits = switching.hits(POINTWISE)
        torch.relu(torch.ones(3))
        assert hits.accelerated == 0


SAMPLED = [
    op
    for op in op_db
    if op.name in ("add", "sub", "mul", "div", "nn.functional.relu", "mm", "matmul")
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("op", SAMPLED, ids=opinfo.name_of)
def test_torchs_samples(op: Any, dtype: torch.dtype) -> None:
    def detached(x: Any) -> Any:
        return x.detach() if isinstance(x, Tensor) else x

    if dtype not in op.supported_dtypes("cpu"):
        return
    calls = [
        tree_map(detached, ((s.input, *s.args), s.kwargs))
        for s in opinfo.samples(op, dtype)
    ]
    with torch.no_grad():
        stock = [op(*args, **keywords) for args, keywords in calls]
        with switching.accelerated(POINTWISE, PRODUCT):
            hits = [switching.hits(name) for name in (POINTWISE, PRODUCT)]
            ours = [op(*args, **keywords) for args, keywords in calls]
            taken = sum(h.accelerated for h in hits)
    is_product = op.name in ("mm", "matmul")
    for a, b in zip(ours, stock, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        if is_product:
            torch.testing.assert_close(a, b, equal_nan=True)
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if dtype is torch.float32 and not op.variant_test_name:
        assert taken > 0


def test_names_that_mean_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 4)
    functions = {name: getattr(torch, name) for name in ("tanh", "add", "mul")}
    with torch.no_grad():
        stock = [torch.tanh(x), torch.add(x, 3), torch.mul(x, 3), x.mul(3)]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "relu", torch.tanh)
            patch.setattr(torch, "mul", torch.add)
            patch.setattr(Tensor, "sub", Tensor.add, raising=False)
            with on():
                tanh, add, mul = functions.values()
                ours = [tanh(x), add(x, 3), mul(x, 3), x.mul(3)]
                assert torch.equal(x.sub(x), x + x)
    for a, b in zip(ours, stock, strict=True):
        assert torch.equal(a, b)
    assert not any(_C.entries().values())


@pytest.mark.parametrize("when", ["before", "after"])
def test_kernels_that_a_program_registers(when: str) -> None:
    x = torch.randn(4, 4)

    def sevens(*args: Any) -> Tensor:
        return torch.full_like(args[0], 7.0)

    def registered() -> Any:
        library = torch.library.Library("aten", "IMPL")
        library.impl("relu", sevens, "CPU")
        library.impl("add.Tensor", sevens, "CPU")
        return library

    library = registered() if when == "before" else None
    try:
        with torch.no_grad(), on():
            if when == "after":
                library = registered()
            assert torch.equal(torch.relu(x), sevens(x))
            assert torch.equal(nn.ReLU()(x), sevens(x))
            assert torch.equal(x + 1, sevens(x))
            hits = switching.hits(POINTWISE)
            assert torch.equal(x * 1, x)
            assert hits.accelerated == 1
            remark = "relu: overridden by" in str(ptac.report())
            assert remark == (when == "before")
    finally:
        library._destroy()
    with torch.no_grad(), on():
        assert both(lambda: torch.relu(x)) == 1

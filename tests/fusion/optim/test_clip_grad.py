"""``clip_grad_norm_`` and ``clip_grad_value_`` give stock's bits, and are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_

from pai_torchacc import _host
from pai_torchacc.fusion.optim import clipping

NORM, VALUE = "clip_grad_norm", "foreach_clamp"
INF, NAN = float("inf"), float("nan")

SIZES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (7,), (8,), (0, 3), (17, 40), (5, 3, 9, 11), (170_001,)),
    *((140_003,), (33,)),
)


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Of odd sizes and dense layouts; one has no gradient."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(size).to(dtype)) for size in SIZES]
    for p in params[:-1]:
        grad = torch.randn(p.shape).to(dtype) * 3
        if grad.dim() == 4:
            grad = grad.to(memory_format=torch.channels_last)
        p.grad = grad.t().contiguous().t() if grad.dim() == 2 else grad
    return params


def run(call: Callable[[list[nn.Parameter]], Any], params: list[nn.Parameter]) -> Any:
    """What comes back or is raised, the gradients, and what autograd hears."""
    grads = [p.grad for p in params if p.grad is not None]
    before = [0 if g.is_inference() else g._version for g in grads]
    try:
        result = call(params)
    except RuntimeError as error:
        result = str(error)
    after = [0 if g.is_inference() else g._version for g in grads]
    told = [a > b for a, b in zip(after, before, strict=True)]
    return result, told, [g.detach() for g in grads]


@pytest.mark.parametrize("row", switching.runnable_rows(NORM))
@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("most", [1, 3.7, 1e9, 0.0])
def test_norm(most: float, foreach: bool | None, row: str) -> None:
    def call(params: list[nn.Parameter]) -> Tensor:
        return clip_grad_norm_(params, most, foreach=foreach)

    stock = run(call, parameters())
    with switching.accelerated(NORM, row=row):
        hits = switching.hits(NORM)
        ours = run(call, parameters())
        assert (hits.accelerated, hits.forwarded) == (2, {})
    contract.exactly(ours, stock)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("row", switching.runnable_rows(NORM))
def test_norm_of_every_length(row: str, n_threads: int) -> None:
    """Sums of stock's own order, whatever fills the last vector."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    torch.manual_seed(1)
    grads = [torch.randn(n) * 10.0 ** (n % 7 - 3) for n in (*range(70), 33_000)]
    try:
        stock = [clip_grad._get_total_norm(grads[i:]) for i in range(len(grads))]
        with switching.accelerated(NORM, row=row):
            hits = switching.hits(NORM)
            ours = [clip_grad._get_total_norm(grads[i:]) for i in range(len(grads))]
            assert (hits.accelerated, hits.forwarded) == (len(grads), {})
    finally:
        torch.set_num_threads(before)
    contract.exactly(ours, stock)


@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e30, 1e-30])
@pytest.mark.parametrize("strict", [False, True])
def test_norm_of_what_is_not_finite(value: float, strict: bool) -> None:
    def call(params: list[nn.Parameter]) -> Tensor:
        params[3].grad[5] = value  # type: ignore[index]
        return clip_grad_norm_(params, 1.0, error_if_nonfinite=strict)

    stock = run(call, parameters())
    with switching.accelerated(NORM):
        hits = switching.hits(NORM)
        ours = run(call, parameters())
        assert hits.accelerated >= 1
    contract.exactly(ours, stock)


def generator(params: list[nn.Parameter]) -> Tensor:
    return clip_grad_norm_((p for p in params), 1.0)


def single(params: list[nn.Parameter]) -> Tensor:
    return clip_grad_norm_(params[5], 1.0)


def of_order(order: float) -> Callable[[list[nn.Parameter]], Tensor]:
    return lambda params: clip_grad_norm_(params, 1.0, norm_type=order)


def shared(params: list[nn.Parameter]) -> Tensor:
    """The same gradient twice is scaled twice, and here by two threads."""
    params[8].grad = params[8].detach()
    params[-1].grad = params[7].grad
    params.append(nn.Parameter(params[7].detach()))
    params[-1].grad = params[7].grad
    return clip_grad_norm_([params[7], params[8], params[-1]], 1.0)


def expanded(params: list[nn.Parameter]) -> Tensor:
    params[1].grad = torch.ones(()).expand(1)
    params[2].grad = torch.ones(1).expand(7)
    return clip_grad._get_total_norm([p.grad for p in params if p.grad is not None])


def strided(params: list[nn.Parameter]) -> Tensor:
    params[2].grad = torch.randn(14)[::2]
    return clip_grad_norm_(params, 1.0)


def in_half(params: list[nn.Parameter]) -> Tensor:
    params[2].grad = None
    params.append(nn.Parameter(torch.ones(5).bfloat16()))
    params[-1].grad = torch.ones(5).bfloat16()
    return clip_grad_norm_(params, 1.0)


def under_autocast(params: list[nn.Parameter]) -> Tensor:
    with torch.autocast("cpu"):
        return clip_grad_norm_(params, 1.0)


def of_tensor(params: list[nn.Parameter]) -> Tensor:
    return clip_grad_norm_(params, torch.tensor(1.5))  # type: ignore[arg-type]


def of_numbers_out_of_range(params: list[nn.Parameter]) -> Any:
    return clip_grad_norm_(params, 1e300), clip_grad_norm_(params, INF)


def none_at_all(params: list[nn.Parameter]) -> Tensor:
    return clip_grad_norm_(params[-1:], 1.0)


def with_graph(params: list[nn.Parameter]) -> Any:
    """Gradients of a second order are parts of a graph."""
    x = nn.Parameter(torch.linspace(1, 2, 50))
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    x.grad = grad
    norm = clip_grad_norm_([x], 1.0)
    return norm, norm.requires_grad, x.grad.detach()


def under_functional(params: list[nn.Parameter]) -> Tensor:
    grads = [params[7].grad, params[8].grad]
    both = torch.func.vmap(lambda x: clip_grad._get_total_norm([x]))
    return both(torch.stack([g[:9] for g in grads if g is not None]))


MIXED = [
    *(generator, single, of_order(1.0), of_order(INF), of_order(2), shared, expanded),
    *(strided, in_half, under_autocast, of_tensor, of_numbers_out_of_range),
    *(none_at_all, with_graph, under_functional),
]


@pytest.mark.parametrize("call", MIXED)
def test_unusual_calls_are_as_stocks(call: Callable[..., Any]) -> None:
    stock = run(call, parameters())
    with switching.accelerated(NORM):
        ours = run(call, parameters())
    contract.exactly(ours, stock)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_stocks(dtype: torch.dtype) -> None:
    def call(params: list[nn.Parameter]) -> Tensor:
        return clip_grad_norm_(params, 1.0)

    stock = run(call, parameters(dtype))
    with switching.accelerated(NORM):
        hits = switching.hits(NORM)
        ours = run(call, parameters(dtype))
        assert hits.accelerated == 0
        assert hits.forwarded["dtype"] >= 1
    contract.exactly(ours, stock)


def test_gradients_made_in_inference_mode_are_stocks_to_scale() -> None:
    def call(params: list[nn.Parameter]) -> Tensor:
        with torch.inference_mode():
            params[7].grad = torch.ones(SIZES[7])
        return clip_grad_norm_(params, 1.0)

    stock = run(call, parameters())
    with switching.accelerated(NORM):
        ours = run(call, parameters())
    contract.exactly(ours, stock)


def test_autograd_hears_of_it_though_nothing_is_too_long() -> None:
    def call(params: list[nn.Parameter]) -> Any:
        x = nn.Parameter(torch.ones(3))
        y = (x * params[2].grad[:3]).sum()  # type: ignore[index]
        clip_grad_norm_(params, 1e9)
        return torch.autograd.grad(y, x)

    stock = run(call, parameters())
    assert "modified by an inplace operation" in stock[0]
    with switching.accelerated(NORM):
        hits = switching.hits(NORM)
        ours = run(call, parameters())
        assert hits.accelerated == 2
    contract.exactly(ours[1:], stock[1:])
    assert "modified by an inplace operation" in ours[0]


def test_checked_by_stock() -> None:
    stock = run(lambda p: clip_grad_norm_(p, 1.0), parameters())
    with switching.accelerated(NORM, verify=1):
        hits = switching.hits(NORM)
        ours = run(lambda p: clip_grad_norm_(p, 1.0), parameters())
        assert hits.accelerated == 2
    contract.exactly(ours, stock)


def test_a_torch_that_clips_otherwise_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = torch.linalg.vector_norm
    c = _host.load()
    with switching.accelerated(NORM):
        assert clipping.prove(c, torch) == {}
    monkeypatch.setattr(torch.linalg, "vector_norm", lambda *a: original(*a) * 1.01)
    said = {NORM: "torch's own clipping gives other bits"}
    assert clipping.prove(c, torch) == said


def test_compiled_whole() -> None:
    def clip(params: list[nn.Parameter]) -> Tensor:
        return clip_grad._get_total_norm([p.grad for p in params])

    params = parameters()[4:7]
    stock = torch.compile(clip, backend="eager", fullgraph=True)(params)
    torch._dynamo.reset()
    with switching.accelerated(NORM):
        hits = switching.hits(NORM)
        ours = torch.compile(clip, backend="eager", fullgraph=True)(params)
        assert hits.accelerated == 0
    contract.exactly(ours, stock)


@pytest.mark.parametrize("row", switching.runnable_rows(VALUE))
@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0, 0.75, 1e-40])
def test_value(
    value: float, dtype: torch.dtype, foreach: bool | None, row: str
) -> None:
    def call(params: list[nn.Parameter]) -> None:
        params[3].grad[:4] = torch.tensor([INF, -INF, NAN, -0.0])  # type: ignore[index]
        clip_grad_value_(params, value, foreach=foreach)

    stock = run(call, parameters(dtype))
    with switching.accelerated(VALUE, row=row):
        hits = switching.hits(VALUE)
        ours = run(call, parameters(dtype))
        assert hits.accelerated == (0 if foreach is False else 2), hits
    contract.exactly(ours, stock)


@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e39])
def test_values_that_torch_treats_apart(value: float) -> None:
    def call(params: list[nn.Parameter]) -> None:
        clip_grad_value_(params, value)

    stock = run(call, parameters())
    with switching.accelerated(VALUE):
        ours = run(call, parameters())
    contract.exactly(ours, stock)

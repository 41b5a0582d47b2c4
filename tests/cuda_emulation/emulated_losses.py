"""F.cross_entropy on CUDA: numbers and dtypes beside stock's, autocast, refusals."""

from __future__ import annotations

import faulthandler
import itertools
import os
from collections.abc import Callable
from typing import Any

import contract
import emulation
import pytest
import torch
import torch.nn.functional as F
from switching import hits
from torch import Tensor

import pai_torchacc as ptac

OPS = ("cross_entropy", "cross_entropy_backward")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
with_autocast = pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])


class Counted:
    """How many of both operators were served since this was made."""

    def __init__(self) -> None:
        self.of = [hits(op) for op in OPS]
        self.before = [h.accelerated for h in self.of]

    def __call__(self) -> list[int]:
        return [h.accelerated - n for h, n in zip(self.of, self.before, strict=True)]


def autocasting(dtype: torch.dtype = torch.bfloat16, enabled: bool = True) -> Any:
    return torch.autocast("cuda", dtype, enabled=enabled)


def loss_and_gradient(
    x: Tensor, target: Tensor, autocast: bool = False, **options: Any
) -> dict[str, Tensor]:
    """Of a loss whose gradient is not 1, and if it is of rows, is different in each."""
    x = x.detach().requires_grad_()
    with autocasting(enabled=autocast):
        loss = F.cross_entropy(x, target, **options)
    grad = torch.linspace(0.5, 1.5, loss.numel()).reshape(loss.shape).to(loss)
    [gradient] = torch.autograd.grad(loss, x, grad)
    return {"loss": loss.detach().cpu(), "gradient": gradient.cpu()}


def indices(n: int, classes: int, ignored: int = -100) -> Tensor:
    target = torch.randint(0, classes, (n,))
    target[2::7] = ignored
    return target


def probabilities(n: int, classes: int) -> Tensor:
    return torch.rand(n, classes).softmax(1)


KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum", "weight": True},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.1, "weight": True, "ignore_index": 3},
    "smooth none": {"label_smoothing": 0.2, "reduction": "none", "weight": True},
    "probabilities": {"soft": True},
    "smooth probabilities": {"soft": True, "weight": True, "label_smoothing": 0.1},
    "probabilities none": {"soft": True, "weight": True, "reduction": "none"},
}


def arguments(
    kind: str, n: int, classes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    options = dict(KINDS[kind])
    soft, weighted = options.pop("soft", False), options.pop("weight", False)
    x = (torch.randn(n, classes) * 3).to(dtype)
    if weighted:
        options["weight"] = (torch.rand(classes) + 0.1).to(dtype)
    if soft:
        return x, probabilities(n, classes).to(dtype), options
    return x, indices(n, classes, options.get("ignore_index", -100)), options


def moved(value: Any, to: Any) -> Any:
    """To a device; or floats to a dtype."""
    is_dtype = isinstance(to, torch.dtype)
    if not isinstance(value, Tensor) or (is_dtype and not value.is_floating_point()):
        return value
    return value.to(to)


def hold(
    draw: Callable[[], tuple[Tensor, Tensor, dict[str, Any]]],
    autocast: bool,
    seeds: int = contract.SEEDS,
) -> None:
    """Both results, of 16 bits too, against float64 of the same numbers."""
    runs: list[list[dict[str, Tensor]]] = [[], [], []]
    counted = Counted()
    for seed in range(seeds):
        torch.default_generator.manual_seed(seed)
        x, target, options = draw()
        here = {k: moved(v, "cuda") for k, v in options.items()}
        args = placed(x), target.cuda(), autocast
        runs[0].append(loss_and_gradient(*args, **here))
        with ptac.disabled():
            runs[1].append(loss_and_gradient(*args, **here))
            wide = {k: moved(v, torch.float64) for k, v in options.items()}
            args = x.double(), moved(target, torch.float64)
            runs[2].append(loss_and_gradient(*args, **wide))
    assert counted() == [seeds] * 2
    for name in runs[0][0]:
        contract.judge(name, *([r[name] for r in results] for results in runs))


def placed(x: Tensor) -> Tensor:
    """On CUDA; every other time not at a multiple of 16 bytes."""
    offset = torch.initial_seed() % 2
    flat = torch.zeros(x.numel() + offset, dtype=x.dtype, device="cuda")
    return flat[offset:].view(x.shape).copy_(x)


@with_autocast
@each_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_contract(on: Any, kind: str, dtype: torch.dtype, autocast: bool) -> None:
    hold(lambda: arguments(kind, 5, 23, dtype), autocast)


SHAPES = [(1, 1), (3, 2), (70, 7), (2, 1024), (2, 1025), (3, 4099)]


@with_autocast
@each_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(
    on: Any, shape: tuple[int, int], dtype: torch.dtype, autocast: bool
) -> None:
    """Rows of a warp's and of a block's."""
    hold(lambda: arguments("mean", *shape, dtype), autocast)


@with_autocast
@each_dtype
@pytest.mark.parametrize("scale", [1e-4, 10.0, 1000.0])
def test_magnitudes(on: Any, scale: float, dtype: torch.dtype, autocast: bool) -> None:
    """Also of logits that are far from 0, which backward reads again."""

    def draw() -> tuple[Tensor, Tensor, dict[str, Any]]:
        x, target, options = arguments("mean", 9, 40, torch.float32)
        shift = scale * torch.randn(9, 1)
        return (x * scale / 3 + shift).to(dtype), target, options

    hold(draw, autocast)


@each_dtype
def test_many_rows_are_summed_in_parts(on: Any, dtype: torch.dtype) -> None:
    x, target, _ = arguments("mean", 20000, 5, dtype)
    since = len(emulation.launches())
    ours = loss_and_gradient(x.cuda(), target.cuda())
    names = [launch.split()[0] for launch in emulation.launches()[since:]]
    assert [name for name in names if "parts" in name] == ["cross_entropy_parts"]
    with ptac.disabled():
        exact = loss_and_gradient(x.double(), target)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(ours["loss"].double(), exact["loss"], rtol=eps, atol=0)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@with_autocast
def test_non_finite(on: Any, bad: float, autocast: bool) -> None:
    x = torch.randn(6, 40)
    x[1, 3] = x[2] = x[4, 5] = bad
    target = torch.tensor([3, 3, 3, 2, 5, -100]).cuda()
    for reduction, dtype in itertools.product(("none", "mean"), DTYPES):
        here = x.cuda().to(dtype), target, autocast
        ours = loss_and_gradient(*here, reduction=reduction)
        with ptac.disabled():
            stock = loss_and_gradient(*here, reduction=reduction)
        for name, expected in stock.items():
            found = ours[name]
            assert torch.equal(found.isnan(), expected.isnan()), name
            assert torch.equal(found.isinf(), expected.isinf()), name


def test_all_targets_ignored(on: Any) -> None:
    """The mean over nothing is NaN, as with stock."""
    x, y = torch.randn(4, 9).cuda(), torch.full((4,), -100).cuda()
    counted = Counted()
    assert F.cross_entropy(x, y).isnan()
    assert F.cross_entropy(x, y, reduction="sum") == 0
    assert counted() == [2, 0]


# --- dtypes ---

F32, F16, BF16 = DTYPES
MIXED = [
    # logits, probabilities, weights, autocast
    (BF16, F32, None, False),
    (BF16, BF16, F32, False),
    (F16, F32, F16, False),
    (F16, F16, F16, False),
    (F32, F32, F32, True),
    (BF16, F32, BF16, True),
    (BF16, None, F32, True),
    (F16, None, F16, True),
    (BF16, None, BF16, False),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtypes", MIXED, ids=str)
def test_mixed_dtypes_give_torchs(
    on: Any, dtypes: tuple[Any, ...], smoothing: float, reduction: str
) -> None:
    of_x, of_target, of_weight, autocast = dtypes
    x, target = torch.randn(4, 9).to("cuda", of_x), indices(4, 9)
    if of_target is not None:
        target = probabilities(4, 9).to(of_target)
    weight = torch.rand(9).to("cuda", of_weight) if of_weight else None
    options = {
        "weight": weight, "label_smoothing": smoothing, "reduction": reduction
    }  # fmt: skip
    counted = Counted()
    ours = loss_and_gradient(x, target.cuda(), autocast, **options)
    assert counted() == [1, 1]
    with ptac.disabled():
        stock = loss_and_gradient(x, target.cuda(), autocast, **options)
    for name, expected in stock.items():
        assert ours[name].dtype == expected.dtype
        near = 8 * torch.finfo(of_x).eps * float(expected.abs().max())
        torch.testing.assert_close(ours[name], expected, rtol=0, atol=near)


def fails_alike(x: Tensor, target: Tensor, **options: Any) -> bool:
    def error() -> str:
        with pytest.raises(RuntimeError) as raised:
            F.cross_entropy(x, target, **options)
        return str(raised.value)

    ours = error()
    with ptac.disabled():
        return ours == error()


def test_what_stock_refuses_raises_its_error(on: Any) -> None:
    x, target = torch.randn(4, 5).cuda(), torch.ones(4).long()
    counted = hits("cross_entropy")
    weight = torch.ones(5).cuda()
    assert fails_alike(x.half(), target.cuda(), weight=weight)
    assert fails_alike(x, target.cuda(), weight=weight.half())
    assert fails_alike(x, target.cuda().int())
    assert {*counted.forwarded} == {"dtype"}
    assert counted.accelerated == 0


# --- autocast ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_model_under_autocast(on: Any, dtype: torch.dtype) -> None:
    """Logits of 16 bits from a layer, a loss in float32, gradients of 16 bits."""
    torch.default_generator.manual_seed(0)
    layer = torch.nn.Linear(6, 33).cuda()
    x, target = torch.randn(8, 6).cuda(), indices(8, 33).cuda()
    seen: list[torch.dtype] = []

    def run() -> tuple[Tensor, list[Tensor]]:
        layer.zero_grad()
        with autocasting(dtype):
            logits = layer(x)
            logits.register_hook(lambda grad: seen.append(grad.dtype))
            loss = torch.nn.CrossEntropyLoss()(logits, target)
        (loss * 1024).backward()  # as a GradScaler has it
        return loss.detach(), [p.grad.clone() for p in layer.parameters()]

    counted = Counted()
    emulation.stock_calls()
    ours = run()
    assert counted() == [1, 1]
    assert not [n for n in emulation.stock_calls() if "softmax" in n or "nll" in n]
    assert seen == [dtype]
    with ptac.disabled():
        stock = run()
    assert ours[0].dtype == stock[0].dtype == torch.float32
    torch.testing.assert_close(ours[0], stock[0], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(ours[1], stock[1], rtol=2e-2, atol=2.0)


def test_backward_under_autocast(on: Any) -> None:
    x = torch.randn(4, 9).to("cuda", torch.bfloat16).requires_grad_()
    target, counted = indices(4, 9).cuda(), Counted()
    with autocasting():
        loss = F.cross_entropy(x, target)
        loss.backward()
    assert counted() == [1, 1]
    assert x.grad is not None
    assert (loss.dtype, x.grad.dtype) == (torch.float32, torch.bfloat16)


STATES: dict[str, tuple[Callable[[], Any], bool, bool]] = {
    # entered; the loss is in float32; served
    "off": (lambda: autocasting(enabled=False), False, True),
    "float16": (lambda: autocasting(torch.float16), True, True),
    "no gradient": (torch.no_grad, False, True),
    "of the CPU": (lambda: torch.autocast("cpu", torch.bfloat16), False, False),
}


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("state", STATES)
def test_states_of_a_thread(on: Any, state: str, inference: bool) -> None:
    """Only autocast on CUDA is let through, and only for what knows what it does."""
    enter, is_wide, is_served = STATES[state]
    x, target = torch.randn(4, 9).to("cuda", torch.bfloat16), indices(4, 9).cuda()
    counted, softmax = Counted(), hits("log_softmax")
    with torch.inference_mode(inference), enter():
        loss = F.cross_entropy(x, target)
        assert torch._C._len_torch_function_stack() == 0
    assert loss.dtype == (torch.float32 if is_wide else torch.bfloat16)
    assert counted() == [int(is_served), 0]
    assert softmax.accelerated == int(not is_served)


def test_autocast_within_a_mode_is_stocks(on: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    x, target = torch.randn(4, 9).cuda(), indices(4, 9).cuda()
    counted = hits("cross_entropy")
    with autocasting(), Watching():
        F.cross_entropy(x, target)
    assert counted.forwarded == {"mode or transform active": 1}
    assert any("nll_loss" in name for name in seen)


# --- what is refused ---

FORWARDED: dict[str, tuple[Callable[[], Any], str]] = {
    "float64": (lambda: (torch.randn(4, 5).double(), torch.ones(4).long()), "dtype"),
    "images": (lambda: (torch.randn(2, 5, 3), torch.ones(2, 3).long()), "shape"),
    "one row": (lambda: (torch.randn(5), torch.tensor(2)), "shape"),
    "no rows": (lambda: (torch.randn(0, 5), torch.ones(0).long()), "empty"),
    "strided": (lambda: (torch.randn(5, 4).t(), torch.ones(4).long()), "layout"),
    "target wants gradient": (
        lambda: (torch.randn(4, 5), torch.rand(4, 5).requires_grad_()),
        "gradient not supported",
    ),
}


@pytest.mark.parametrize("name", FORWARDED)
def test_is_forwarded_with_its_reason(on: Any, name: str) -> None:
    make, reason = FORWARDED[name]
    x, y = make()
    counted = hits("cross_entropy")
    ours = F.cross_entropy(x.cuda(), y.cuda())
    assert (counted.accelerated, counted.forwarded) == (0, {reason: 1})
    with ptac.disabled():
        torch.testing.assert_close(
            ours.cpu(), F.cross_entropy(x, y), rtol=1e-5, atol=1e-6, equal_nan=True
        )


def test_tensors_of_several_devices_are_stocks(on: Any) -> None:
    x, y = torch.randn(4, 5).cuda(), torch.ones(4).long()
    counted = hits("cross_entropy")
    for target in (y, y.to("cuda:1")):
        F.cross_entropy(x, target)  # the emulated stock does not mind
    assert (counted.accelerated, counted.forwarded) == (0, {"device": 2})


def test_a_target_out_of_range_stops_the_device(on: Any) -> None:
    """As stock's assertion does."""
    x = torch.randn(4, 5).cuda()
    target = torch.tensor([1, 5, 0, 2]).cuda()
    F.cross_entropy(x, target.clamp(max=4))
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        F.cross_entropy(x, target)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0

"""Batch normalization behind torch's functions and modules, and its gradient."""

from __future__ import annotations

import copy
import itertools
import json
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

import pai_torchacc as ptac

OPS = ("batch_norm", "batch_norm_backward")
aten = torch.ops.aten

NOT_OURS = {"dtype", "disabled in this thread"}
"""The reasons of what a comparison computes in float64 and by stock."""

SHAPES = [
    (33, 20),
    (64, 1030),
    (2, 3, 17),
    (70, 5, 3),
    (3, 19, 7, 7),
    (20, 6, 4, 4),
    (4, 3, 70, 81),
    (2, 5, 3, 9, 4),
]


def layout(x: Tensor, how: str) -> Tensor:
    match how:
        case "channels_last" if x.dim() == 4:
            return x.to(memory_format=torch.channels_last)
        case "channels_last" if x.dim() == 5:
            return x.to(memory_format=torch.channels_last_3d)
        case "transposed":
            return x.transpose(1, -1).contiguous().transpose(1, -1)
        case "sliced":
            return torch.cat([x, x], 0)[:: 2 if x.dim() > 3 else 1][: x.shape[0]]
        case _:
            return x


OPTIONS: list[dict[str, Any]] = [
    {"training": False},
    {"affine": False},
    {"running": False},
    {"away": 100.0},
]


def statistics(n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "running_mean": contract.draw(n, dtype=dtype),
        "running_var": contract.draw(n, dtype=dtype).abs() + 0.5,
    }


def case(
    shape: tuple[int, ...],
    how: str = "plain",
    *,
    training: bool = True,
    affine: bool = True,
    running: bool = True,
    away: float = 0.3,
) -> contract.Case:
    """Results, gradients, and running statistics as they are afterwards."""

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        n = shape[1]
        x = layout(contract.draw(*shape, dtype=dtype) + away, how).requires_grad_()
        grad = layout(contract.draw(*shape, dtype=dtype), how)
        weights = [contract.draw(n, dtype=dtype).requires_grad_() for _ in range(2)]
        state = statistics(n, dtype) if running else {}
        y = F.batch_norm(
            x,
            state.get("running_mean"),
            state.get("running_var"),
            *(weights if affine else (None, None)),
            training=training,
            momentum=0.2,
            eps=1e-4,
        )
        wanted = [x, *weights] if affine else [x]
        gradients = torch.autograd.grad(y, wanted, grad)
        names = ("grad_x", "grad_weight", "grad_bias")
        return {"y": y, **dict(zip(names, gradients, strict=False)), **state}

    return run


@pytest.mark.parametrize("row", switching.runnable_rows(OPS[0]))
@pytest.mark.parametrize("how", ["plain", "channels_last"])
def test_numbers(how: str, row: str) -> None:
    with switching.accelerated(*OPS, row=row):
        for shape in SHAPES:
            hits = [switching.hits(op) for op in OPS]
            contract.hold(case(shape, how))
            assert all(h.accelerated for h in hits), hits
            assert not any(set(h.forwarded) - NOT_OURS for h in hits), hits

        for shape in SHAPES[::3]:
            for options in OPTIONS:
                contract.hold(case(shape, how, **options))


@pytest.mark.parametrize("how", ["transposed", "sliced"])
def test_inputs_with_gaps(how: str) -> None:
    with switching.accelerated(*OPS):
        for shape in SHAPES:
            contract.hold(case(shape, how))


def test_means_far_from_zero() -> None:
    """As stock's: the first element of a channel may be far from its mean, too."""

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(4, 3, 40, 40, dtype=dtype) + 1e3
        x[:, :, 0, 0] = -4e4
        rows = contract.draw(3000, 20, dtype=dtype) + 1e4
        rows[0] = 1e6
        found = {}
        for name, given in (("nchw", x), ("nhwc", rows)):
            y, mean, rstd = aten.native_batch_norm(
                given, None, None, None, None, True, 0.1, 1e-5
            )
            found |= {f"{name} y": y, f"{name} mean": mean, f"{name} rstd": rstd}
        return found

    with switching.accelerated(OPS[0]):
        hits = switching.hits(OPS[0])
        contract.hold(run)
        assert hits.accelerated >= 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_in_its_channel(value: float) -> None:
    for shape in SHAPES:
        for how in ("plain", "channels_last"):
            x = torch.randn(shape)
            x[0, 1].view(-1)[0] = x[-1, 0].view(-1)[-1] = value
            x = layout(x, how)

            def run(x: Tensor = x) -> Any:
                torch.manual_seed(0)
                state = statistics(x.shape[1], x.dtype).values()
                results = torch.native_batch_norm(
                    x, None, None, *state, True, 0.1, 1e-5
                )
                grad = torch.ones_like(x)
                back = aten.native_batch_norm_backward(
                    grad, x, None, *state, *results[1:], True, 1e-5, [True] * 3
                )
                return [*results, *state, *back]

            stock = run()
            with switching.accelerated(*OPS):
                hits = switching.hits(OPS[0])
                ours = run()
                assert hits.accelerated == 1
            torch.testing.assert_close(
                ours, stock, rtol=1e-4, atol=1e-3, equal_nan=True
            )


INFINITY = float("inf")


@pytest.mark.parametrize("row", switching.runnable_rows(OPS[0]))
def test_statistics_and_weights_that_are_not_finite(row: str) -> None:
    """Results are infinite and NaN where stock's are, also where eps is 0."""
    numbers = [0.0, 1.0, -2.0, INFINITY, -INFINITY, float("nan")]
    triples = itertools.product(numbers, numbers, numbers[:4])
    mean, var, weight = map(torch.tensor, zip(*triples, strict=True))
    bias, n = torch.ones_like(mean), len(mean)
    for eps in (0.0, 1e-5):
        for shape in ((6, n), (2, n, 3), (1, n, 6), (1, n, 72)):
            x = torch.tensor([-1.0, 2, INFINITY, -INFINITY, 0, float("nan")])
            x = x.repeat(12)[: shape[0] * (shape[2:] or (1,))[0]]
            x = x.view(shape[0], 1, *shape[2:]).expand(shape).contiguous()
            finite = x.nan_to_num(1.0, 3.0, 4.0)
            finite[:, ::2] = 3

            def run(x: Tensor = x, finite: Tensor = finite, eps: float = eps) -> Any:
                norm = aten.native_batch_norm
                y = norm(x, weight, bias, mean, var, False, 0.1, eps)[0]
                batch = norm(finite, weight, bias, None, None, True, 0.1, eps)
                return [y, *batch]

            stock = run()
            with switching.accelerated(OPS[0], row=row):
                hits = switching.hits(OPS[0])
                ours = run()
                assert hits.accelerated == 2
            torch.testing.assert_close(
                ours, stock, rtol=1e-4, atol=1e-3, equal_nan=True
            )


def once(x: Tensor, grad: Tensor, module: nn.Module) -> list[Tensor]:
    module = copy.deepcopy(module)
    y = module(x)
    wanted = [x, *module.parameters()]
    return [y, *torch.autograd.grad(y, wanted, grad), *module.buffers()]


MODULES = [
    (nn.BatchNorm1d(20), (33, 20)),
    (nn.BatchNorm1d(20, momentum=None), (33, 20, 5)),
    (nn.BatchNorm2d(6), (3, 6, 9, 8)),
    (nn.BatchNorm2d(6, affine=False), (3, 6, 9, 8)),
    (nn.BatchNorm2d(6, track_running_stats=False), (3, 6, 9, 8)),
    (nn.BatchNorm3d(3), (2, 3, 4, 5, 6)),
    (nn.InstanceNorm2d(6), (3, 6, 9, 8)),
    (nn.InstanceNorm2d(6, affine=True, track_running_stats=True), (3, 6, 9, 8)),
]


@pytest.mark.parametrize(("module", "shape"), MODULES, ids=str)
def test_modules(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Each by one call of ours; buffers keep their versions, as stock leaves them."""
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    stock = once(x, grad, module)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = once(x, grad, module)
        assert [h.accelerated for h in hits] == [1, 1]
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
        assert (a.stride(), a._version) == (b.stride(), b._version)


def test_results_do_not_depend_on_threads() -> None:
    before = torch.get_num_threads()
    try:
        with switching.accelerated(*OPS):
            for shape in (*SHAPES, (2, 2, 200, 200), (900, 40)):
                for how in ("plain", "channels_last"):
                    found = []
                    for n in (1, 2, 3):
                        torch.set_num_threads(n)
                        torch.manual_seed(0)
                        found.append(case(shape, how)(torch.float32))
                    for other in found[1:]:
                        contract.exactly(other, found[0])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("row", switching.runnable_rows("batch_norm"))
@pytest.mark.parametrize("size", [56, 53], ids=["whole lines", "ragged"])
def test_results_that_go_past_the_caches(size: int, row: str) -> None:
    """Of more than 32 MiB; those of half of the channels do not, but are the same."""
    x, grad = torch.randn(8, 384, size, size), torch.randn(8, 384, size, size)

    def gradients(part: slice) -> list[Tensor]:
        leaf = x[:, part].clone().requires_grad_()
        y = F.batch_norm(leaf, None, None, training=True)
        return [y.detach(), *torch.autograd.grad(y, leaf, grad[:, part].contiguous())]

    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        large = gradients(slice(None))
        halves = gradients(slice(0, 192)), gradients(slice(192, None))
        assert [h.accelerated for h in hits] == [3, 3]
    for all_of_it, *parts in zip(large, *halves, strict=True):
        torch.testing.assert_close(all_of_it, torch.cat(parts, 1), rtol=1e-5, atol=1e-5)


def test_each_mask_of_gradients() -> None:
    """What nobody asks for is not made; frozen statistics need no sums."""
    x, grad = torch.randn(3, 5, 6, 7), torch.randn(3, 5, 6, 7)
    weight, mean, var = torch.randn(5), torch.randn(5), torch.rand(5) + 0.5
    for training in (True, False):
        for bits in range(8):
            mask = [bool(bits >> i & 1) for i in range(3)]

            def run(mask: list[bool] = mask, training: bool = training) -> Any:
                saved = (mean, var) if training else (None, None)
                return aten.native_batch_norm_backward(
                    grad, x, weight, mean, var, *saved, training, 1e-5, mask
                )

            stock = run()
            with switching.accelerated(*OPS):
                hits = switching.hits(OPS[1])
                ours = run()
                assert hits.accelerated == 1
            for a, b, wanted in zip(ours, stock, mask, strict=True):
                assert (a is None) == (b is None)
                if wanted:
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


def test_expanded_gradients() -> None:
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        for how in ("plain", "channels_last"):
            x = layout(torch.randn(3, 5, 6, 7), how).requires_grad_()
            F.batch_norm(x, None, None, training=True).mean((2, 3)).sum().backward()
            assert x.grad is not None
            assert x.grad.stride() == x.stride()
            assert float(x.grad.abs().max()) < 1e-5
        assert hits.accelerated == 2


def odd(x: Tensor, stride: int) -> Tensor:
    """With another stride along a dimension of one element."""
    strides = (*x.stride()[:2], stride, *x.stride()[3:])
    return x.new_empty(0).set_(x.untyped_storage(), 0, x.shape, strides)


@pytest.mark.parametrize("sizes", [(4, 8, 1, 16), (4, 8, 1, 1), (4, 1, 1, 5)])
def test_gradients_lie_as_stocks_where_a_layout_is_ambiguous(
    sizes: tuple[int, ...],
) -> None:
    """And ours have the right numbers: stock confounds some layouts."""
    n = sizes[1]
    saved = torch.zeros(n), torch.ones(n)
    plain = torch.randn(sizes)
    last = torch.empty_like(plain, memory_format=torch.channels_last).copy_(plain)
    layouts = [plain, last, odd(plain, 2176), odd(last, 2176), odd(last, 1)]

    def run(x: Tensor, grad: Tensor) -> Any:
        return aten.native_batch_norm_backward(
            grad, x, None, None, None, *saved, True, 1e-5, [True] * 3
        )

    right = run(plain, plain)
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        for x, grad in itertools.product(layouts, layouts):
            before = hits.accelerated
            ours = run(x, grad)
            with ptac.disabled():
                stock = run(x, grad)
            assert [t.stride() for t in ours] == [t.stride() for t in stock]
            if hits.accelerated > before:
                torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)
        assert hits.accelerated >= 10


REFUSED: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("dtype", lambda x: F.batch_norm(x.double(), None, None, training=True)),
    ("dtype", lambda x: F.batch_norm(x.bfloat16(), None, None, training=True)),
    ("dtype", lambda x: nn.BatchNorm2d(3)(x.bfloat16())),
    ("dtype", nn.BatchNorm2d(3).double()),
    ("empty", lambda x: F.batch_norm(x[:0], None, None, training=True)),
    ("empty", lambda x: F.batch_norm(x[:, :, :0], None, None, training=True)),
    ("shape", lambda x: torch.batch_norm(x[:1, :, :1, :1], *NOTHING, True, *LAST)),
    ("argument", lambda x: torch.batch_norm(x, *NOTHING, False, *LAST)),
    ("argument", lambda x: aten.native_batch_norm(x, SHORT, *REST, True, *LAST[:2])),
]
NOTHING, REST, LAST = (None,) * 4, (None,) * 3, (0.1, 1e-5, False)
SHORT = torch.ones(4)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_stock_does_what_we_refuse(number: int) -> None:
    reason, call = REFUSED[number]
    x = torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4)

    stock = contract.said(lambda: call(x))
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = contract.said(lambda: call(x))
        assert not hits.accelerated
        assert set(hits.forwarded) <= {reason}
    contract.exactly(ours, stock)


def test_one_value_per_channel_is_torchs_error() -> None:
    with switching.accelerated(*OPS), pytest.raises(ValueError, match="more than 1"):
        nn.BatchNorm1d(4)(torch.randn(1, 4))


def test_double_backward_and_transforms() -> None:
    x = torch.randn(4, 3, 5, 2)
    weight = torch.randn(3)

    def loss(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, weight, training=True).pow(3).sum()

    def second(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return torch.autograd.grad(grad.pow(2).sum(), x)[0]

    functions = [second, torch.func.grad(loss), torch.func.vmap(lambda x: x + loss(x))]
    functions += [lambda x: torch.func.jvp(loss, (x,), (x,))[1]]
    stock = [f(x) for f in functions[:2]] + [f(x[None]) for f in functions[2:3]]
    stock += [functions[3](x)]
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = [f(x) for f in functions[:2]] + [f(x[None]) for f in functions[2:3]]
        ours += [functions[3](x)]
        assert hits.accelerated >= 3
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_autocast() -> None:
    """Float32 inputs are ours; what a layer before made bfloat16 is stock's."""
    conv, norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
    x = torch.randn(2, 3, 8, 8)
    with switching.accelerated(*OPS), torch.autocast("cpu", torch.bfloat16):
        hits = switching.hits(OPS[0])
        assert norm(conv(x)).dtype is torch.bfloat16
        assert hits.forwarded == {"dtype": 1}
        assert norm(torch.randn(2, 4, 8, 8)).dtype is torch.float32
        assert hits.accelerated == 1


def test_shadow_checks_update_running_statistics_once() -> None:
    """Also where a check finds a row wrong, whose statistics nobody must see."""
    x = torch.randn(8, 5, 6, 6)
    stock = once(x.requires_grad_(), torch.ones_like(x), nn.BatchNorm2d(5))
    with switching.accelerated(*OPS, verify=1):
        hits = switching.hits(OPS[0])
        ours = once(x, torch.ones_like(x), nn.BatchNorm2d(5))
        assert hits.accelerated == 1
        torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)
        # Statistics of floats whose squares overflow are infinite in stock alone.
        huge = (x * 1e25).detach().requires_grad_()
        module = nn.BatchNorm2d(5)
        found = once(huge, torch.ones_like(x), module)
        with ptac.disabled():
            expected = once(huge, torch.ones_like(x), module)
        contract.exactly(found, expected)
        trouble = json.loads(ptac.report("json"))["ops"][OPS[0]]["trouble"]
        assert "shadow check" in trouble
    internals.reset_quarantine()


def test_a_row_that_fails_has_updated_nothing() -> None:
    x, module = torch.randn(8, 5, 6, 6, requires_grad=True), nn.BatchNorm2d(5)
    stock = once(x, torch.ones_like(x), module)
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        internals.inject_failure(OPS[0])
        ours = once(x, torch.ones_like(x), module)
        assert hits.failed == 1
    internals.reset_quarantine()
    contract.exactly(ours[0], stock[0])
    contract.exactly(ours[4:], stock[4:])


def test_toggling_while_other_threads_train() -> None:
    x, problems = torch.randn(16, 8, 9, 9), []
    expected = F.batch_norm(x, None, None, training=True)
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            given = x.clone().requires_grad_()
            y = F.batch_norm(given, None, None, training=True)
            y.sum().backward()
            if not torch.allclose(y, expected, atol=1e-4):
                problems.append(y)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with switching.accelerated(*OPS):
                F.batch_norm(x, None, None, training=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not problems


def test_a_model_trains_as_in_stock() -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
        ).append(nn.Linear(8 * 36, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        x, target = torch.randn(16, 3, 8, 8), torch.randint(0, 4, (16,))
        found = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        assert model[1].num_batches_tracked == 6
        model.eval()
        return [*found, float(model(x).detach().sum())]

    stock = losses()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = losses()
        assert [h.accelerated for h in hits] == [7, 6]
    assert ours == pytest.approx(stock, rel=1e-4, abs=1e-4)

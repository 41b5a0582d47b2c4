"""A BatchNorm2d in training and its activation as one batch_norm_act: its numbers."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from norm_training import ACTIVATIONS, LAYOUTS, OPS, agree, both, chain, trained
from torch import Tensor, nn

import pai_torchacc as ptac

NOT_OURS = {"dtype", "disabled in this thread"}
"""The reasons of what a comparison computes in float64 and by stock."""

ROWS = switching.runnable_rows(OPS[0])
SHAPES = (
    (2, 104, 9, 11),
    (3, 130, 7, 7),
    (70, 5, 8, 8),
    (16, 8, 2, 2),
    (2, 2, 70, 131),
    (33, 101, 1, 1),
    (50, 104),
    (20, 9),
    (6, 104, 17),
    (2, 101, 3, 5, 4),
)
"""Of fewer than 100 channels the contract asks for many seeds."""


def results(net: nn.Sequential, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    y = net(x)
    y.backward(grad)
    grads = {name: p.grad for name, p in net.named_parameters()}
    buffers = {n: b.clone() for n, b in net.named_buffers() if b.dim()}
    return {"y": y, "x": x.grad, **grads, **buffers}


@lru_cache(4)
def case_of(
    shape: tuple[int, ...], act: str, layout: torch.memory_format, affine: bool
) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = 3 * contract.draw(*shape, dtype=dtype) + 1
        if len(shape) == 4:
            x = x.to(memory_format=layout)
        net = chain(shape[1], act, n_dims=len(shape), affine=affine).to(dtype)
        grad = contract.draw(*shape, dtype=dtype)
        return results(net, x.requires_grad_(), grad)

    return case


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract(row: str, act: str, shape: tuple[int, ...]) -> None:
    with switching.accelerated(*OPS, row=row):
        for layout in LAYOUTS if len(shape) == 4 else LAYOUTS[:1]:
            hits = [switching.hits(op) for op in OPS]
            contract.hold(case_of(shape, act, layout, act != "silu_"))
            assert all(h.accelerated >= 1 for h in hits)
            assert all(set(h.forwarded) <= NOT_OURS for h in hits)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.3, "eps": 1e-2},
        {"momentum": 0.0},
        {"momentum": 1.0},
        {"affine": False},
        {"track_running_stats": False},
        {"momentum": None},
        {"momentum": None, "track_running_stats": False},
    ],
    ids=str,
)
def test_steps_leave_the_module_as_stock_does(options: dict[str, Any]) -> None:
    def steps() -> Any:
        net = chain(7, **options)
        versions = [b._version for b in net.buffers()]
        seen = trained(net, torch.randn(6, 7, 5, 9), 4)
        return seen, [
            b._version - v for b, v in zip(net.buffers(), versions, strict=True)
        ]

    agree(steps, 4)


def test_without_statistics_of_its_own() -> None:
    def steps(name: str, value: Any) -> Any:
        net = chain(7)
        setattr(net[0], name, value)
        return trained(net, torch.randn(6, 7, 5, 9), 2)

    agree(lambda: steps("num_batches_tracked", None), 2)
    agree(lambda: steps("num_batches_tracked", torch.tensor(3, dtype=torch.int32)), 0)
    agree(lambda: steps("momentum", None), 2)
    agree(lambda: steps("momentum", 1), 0)
    agree(lambda: steps("num_batches_tracked", torch.tensor(6)), 2)
    agree(lambda: steps("eps", 1), 0)
    agree(lambda: steps("track_running_stats", False), 2)


def test_means_of_all_batches() -> None:
    def steps(counted: int | None) -> Any:
        net = chain(7, momentum=None)
        count = net[0].num_batches_tracked
        net[0].num_batches_tracked = None if counted is None else count + counted
        return trained(net, torch.randn(6, 7, 5, 9), 3)

    agree(lambda: steps(0), 3)
    agree(lambda: steps(5), 3)
    agree(lambda: steps(None), 3)
    with pytest.raises(ZeroDivisionError), switching.accelerated(*OPS):
        steps(-1)


def test_without_statistics_eval_mode_goes_by_the_batch() -> None:
    def steps(n_dims: int, **attributes: Any) -> Any:
        net = chain(7, n_dims=n_dims, track_running_stats=False).eval()
        for name, value in attributes.items():
            setattr(net[0], name, value)
        seen = trained(net, torch.randn(6, 7, *(5, 9, 3)[: n_dims - 2]), 2)
        with torch.no_grad():
            return [*seen, net(torch.randn(3, 7, *[4] * (n_dims - 2)))]

    for n_dims in (2, 3, 4, 5):
        agree(lambda n=n_dims: steps(n), 2)
    agree(lambda: steps(4, track_running_stats=True), 2)
    agree(lambda: steps(4, track_running_stats=0), 0)
    agree(lambda: steps(4, running_mean=torch.zeros(7), running_var=torch.ones(7)), 0)


@pytest.mark.parametrize("which", range(8))
def test_gradients_of_some_only(which: int) -> None:
    def program() -> Any:
        net = chain(6, "hardswish")
        x = torch.randn(4, 6, 5, 5, requires_grad=bool(which & 1))
        net[0].weight.requires_grad_(bool(which & 2))
        net[0].bias.requires_grad_(bool(which & 4))
        y = net(x)
        if y.requires_grad:
            y.square().sum().backward()
        return y.detach(), [t.grad for t in (x, *net.parameters())], [*net.buffers()]

    agree(program, int(which > 0))


def test_gradients_that_lie_otherwise() -> None:
    def program(layout: torch.memory_format, grad: Callable[[Tensor], Tensor]) -> Any:
        net = chain(6, "silu_")
        x = torch.randn(4, 6, 5, 3).to(memory_format=layout).requires_grad_()
        y = net(x)
        y.backward(grad(y.detach()))
        return x.grad, [p.grad for p in net.parameters()]

    for layout in LAYOUTS:
        for grad in (
            lambda y: torch.ones(()).expand_as(y),
            lambda y: y.transpose(2, 3).contiguous().transpose(2, 3),
            lambda y: y.to(memory_format=torch.channels_last),
            lambda y: y.contiguous(),
            lambda y: torch.cat([y, y], 3)[..., ::2],
        ):
            agree(lambda layout=layout, grad=grad: program(layout, grad))


def test_what_x_may_be() -> None:
    for x, n in (
        (torch.randn(2, 6, 5, 4).to(memory_format=torch.channels_last), 1),
        (torch.randn(2, 6, 5, 8)[..., ::2], 0),
        (torch.randn(2, 6, 1, 1).expand(2, 6, 5, 4), 0),
        (torch.randn(8, 6, 1, 1).to(memory_format=torch.channels_last), 1),
        (torch.randn(2, 6, 5, 4, dtype=torch.float64), 0),
        (torch.randn(2, 6, 5, 4, dtype=torch.bfloat16), 0),
        (torch.randn(9, 6), 1),
        (torch.randn(9, 12)[:, ::2], 0),
        (torch.randn(6, 9).t(), 0),
        (torch.randn(9, 6, 1), 1),
        (torch.randn(9, 6, 8).transpose(0, 2), 0),
        (torch.randn(9, 5, 6).transpose(1, 2), 0),
        (torch.randn(2, 6, 3, 5, 4), 1),
        (torch.randn(2, 6, 1, 1, 1), 1),
        (torch.randn(2, 1, 3, 5, 4), 1),
        (torch.randn(2, 6, 1, 1, 1).to(memory_format=torch.channels_last_3d), 0),
        (torch.randn(2, 6, 3, 5, 4).to(memory_format=torch.channels_last_3d), 0),
    ):

        def program(x: Tensor = x) -> Any:
            net = chain(x.shape[1], n_dims=x.dim()).to(x.dtype)
            return trained(net, x)

        agree(program, n)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_values_that_are_not_finite(act: str) -> None:
    """In the channel that has one.

    Sizes leave no elements behind stock's vectors, for which it computes otherwise.
    """

    def program(value: float, where: str, layout: torch.memory_format) -> Any:
        net = chain(4, act)
        x = torch.randn(2, 4, 8, 8)
        if where == "x":
            x[1, 2, 3, 4] = value
        else:
            with torch.no_grad():
                getattr(net[0], where)[2] = value
        x = x.to(memory_format=layout).requires_grad_()
        y = net(x)
        if where == "weight":  # what is NaN then has no gradient to speak of
            return y.detach()
        y.backward(torch.ones_like(y))
        gradients = x.grad, net[0].weight.grad
        return y.detach(), gradients, [*net.buffers()]

    for value in (float("nan"), float("inf"), -float("inf")):
        for where in ("x", "weight", "bias"):
            for layout in LAYOUTS:
                expected, result = both(
                    lambda v=value, w=where, m=layout: program(v, w, m),
                    *(1, int(where != "weight")),
                )
                torch.testing.assert_close(
                    result, expected, equal_nan=True, rtol=1e-4, atol=1e-5
                )


def test_edges_are_stocks() -> None:
    """The gradient where the activation's input is an edge of its pieces."""

    def program(act: str) -> Any:
        net = nn.Sequential(nn.BatchNorm2d(6), ACTIVATIONS[act]())
        with torch.no_grad():  # z is the bias, as all that x spreads is lost in it
            net[0].weight.zero_()
            net[0].bias.copy_(torch.tensor([-3.0, 0.0, 3.0, 6.0, -0.0, 1.0]))
        y = net(torch.randn(4, 6, 5, 5))
        y.backward(torch.ones_like(y))
        return y.detach(), net[0].bias.grad

    for act in ACTIVATIONS:
        agree(lambda act=act: program(act))


def test_copies_and_state() -> None:
    def program() -> Any:
        net, x = chain(6), torch.randn(4, 6, 5, 5)
        trained(net, x)
        twin = copy.deepcopy(net)
        state = copy.deepcopy(net.state_dict())
        seen = trained(twin, x)
        net.load_state_dict(state)
        return seen, trained(net, x), [*state.values()]

    agree(program, 3)


def test_threads_do_not_change_a_bit() -> None:
    n = torch.get_num_threads()
    x = torch.randn(4, 40, 33, 31)
    made = []
    try:
        with switching.accelerated(*OPS):
            for n_threads in (1, 2, 3):
                torch.set_num_threads(n_threads)
                torch.manual_seed(0)
                made.append(trained(chain(40, "silu_"), x))
    finally:
        torch.set_num_threads(n)
    for other in made[1:]:
        contract.exactly(other, made[0])


class Inverted(nn.Module):
    """As in MobileNet: narrow, wide, depthwise, narrow, with what came in added."""

    def __init__(self, c: int, wide: int, act: str):
        super().__init__()
        conv = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(c, wide, 1, bias=False), *chain(wide, act)),
            nn.Sequential(conv, *chain(wide, act)),
            nn.Conv2d(wide, c, 1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x)
        return y


def test_fifty_steps_of_a_network() -> None:
    def losses(dtype: torch.dtype) -> Tensor:
        torch.manual_seed(0)
        blocks = [Inverted(8, 16, "relu6"), Inverted(8, 16, "silu_")]
        net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        net = nn.Sequential(net, nn.Linear(8, 4)).to(dtype)
        x = torch.randn(8, 8, 6, 6).to(dtype)
        target = torch.arange(8) % 4
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        seen = []
        for _ in range(50):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), target)
            loss.backward()
            optimizer.step()
            seen.append(loss.detach().double())
        return torch.stack(seen)

    exact, stock = losses(torch.float64), losses(torch.float32)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = losses(torch.float32)
        assert [h.accelerated for h in hits] == [200, 200]
    assert stock[-1] < 0.5 * stock[0]
    # Roundings grow alike in both as steps go on, but not from the same ones.
    far = 10 * (stock - exact).abs().max() + 1e-6
    assert (ours - exact).abs().max() <= far


def test_memory_goes_with_the_graph() -> None:
    net = nn.Sequential(nn.Conv2d(6, 6, 1), *chain(6, "silu_"))
    with switching.accelerated(*OPS):
        y = net(torch.randn(4, 6, 5, 5))
        x = weakref.ref(y.grad_fn.saved_tensors[0])
        y.sum().backward()
        gc.disable()
        try:
            made = weakref.ref(y)
            assert x() is None  # backward lets go of what was saved
            del y
            assert made() is None  # not only by the collector
        finally:
            gc.enable()


def test_saves_less_than_stock() -> None:
    """Only the norm's input; stock also what the activation was applied to."""
    net = nn.Sequential(nn.Conv2d(4, 16, 1), *chain(16, "silu_"), nn.Conv2d(16, 4, 1))
    net[2].inplace = False
    x = torch.randn(2, 4, 64, 64)

    def kept() -> int:
        before = ptac.memory_stats("cpu")["allocated_bytes.all.current"]
        y = net(x)
        after: int = ptac.memory_stats("cpu")["allocated_bytes.all.current"]
        del y
        return after - before

    with ptac.enable("memory_pool"):
        stock = kept()
        with ptac.enable("operator_fusion", include=OPS), switching.pins(OPS):
            hits = switching.hits(OPS[0])
            assert stock - kept() >= 2 * 16 * 64 * 64 * 4
            assert hits.accelerated == 1

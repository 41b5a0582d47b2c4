"""A BatchNorm2d in eval mode and the activation behind it, as one batch_norm_act."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

OP = "batch_norm_act"
ROWS = switching.runnable_rows(OP)
SHAPES = (
    (2, 24, 17, 19),
    (1, 40, 7, 7),
    (70, 5, 8, 8),
    (16, 8, 2, 2),
    (3, 1, 5, 1),
    (2, 67, 1, 1),
)
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu_": lambda: nn.ReLU(inplace=True),
    "relu6_": lambda: nn.ReLU6(inplace=True),
    "silu": nn.SiLU,
    "hardswish_": lambda: nn.Hardswish(inplace=True),
}


def norm(channels: int, *, affine: bool = True) -> nn.BatchNorm2d:
    """One in eval mode whose statistics are of some other data."""
    made = nn.BatchNorm2d(channels, affine=affine).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
        made.running_mean.normal_()
        made.running_var.uniform_(0.3, 2)
    return made


def chain(channels: int, act: str = "relu6_", **options: bool) -> nn.Sequential:
    return nn.Sequential(norm(channels, **options), ACTIVATIONS[act]())


def block(c: int = 8, k: int = 12, act: str = "relu6_") -> nn.Sequential:
    """Of which the norm may work in place: nobody has the convolution's output."""
    return nn.Sequential(nn.Conv2d(c, k, 1), *chain(k, act)).eval()


@lru_cache(4)
def case_of(
    shape: tuple[int, ...], act: str, layout: torch.memory_format, affine: bool
) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = 3 * contract.draw(*shape, dtype=dtype).to(memory_format=layout)
        with torch.no_grad():
            return {"y": chain(shape[1], act, affine=affine).to(dtype)(x)}

    return case


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract(row: str, act: str, shape: tuple[int, ...]) -> None:
    with switching.accelerated(OP, row=row):
        for layout in (torch.contiguous_format, torch.channels_last):
            hits = switching.hits(OP)
            contract.hold(case_of(shape, act, layout, act != "silu"))
            assert hits.accelerated >= 1
            assert hits.forwarded.keys() <= {"dtype", "disabled in this thread"}


def both(run: Callable[[], Any], n: int = 1) -> tuple[Any, Any]:
    """What stock makes, and what we do, with so many calls served."""
    expected = run()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        result = run()
        assert hits.accelerated == n
    return expected, result


def storages(run: Callable[[], Any]) -> int:
    """How many of 64 KiB and more it makes, which are the memory pool's."""
    before = ptac.memory_stats("cpu")["allocation.all.allocated"]
    run()
    return ptac.memory_stats("cpu")["allocation.all.allocated"] - before


def agree(run: Callable[[], Any], n: int = 1) -> None:
    expected, result = both(run, n)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    assert result.stride() == expected.stride()


@torch.no_grad()
def test_strides_and_special_values() -> None:
    tricky = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 3e38, 7.0])
    for act in ACTIVATIONS:
        net = chain(6, act)
        x = tricky.expand(2, 3, 5, 6).permute(0, 3, 1, 2).contiguous()
        expected, result = both(lambda net=net, x=x: net(x))
        assert torch.equal(result.isnan(), expected.isnan())
        torch.testing.assert_close(result, expected, equal_nan=True)
    net = chain(6)
    for x, n in (
        (torch.randn(2, 6, 5, 4).to(memory_format=torch.channels_last), 1),
        (torch.randn(2, 6, 5, 8)[..., ::2], 0),
        (torch.randn(2, 6, 1, 1).expand(2, 6, 5, 4), 0),
        (torch.randn(5, 6, 2, 4).transpose(0, 2), 0),
        (torch.randn(0, 6, 5, 4), 0),
        (torch.randn(2, 6, 1, 1).to(memory_format=torch.channels_last), 1),
        (torch.randn(2, 6, 5, 4, dtype=torch.float64), 0),
    ):
        own = copy.deepcopy(net).to(x.dtype)
        agree(lambda own=own, x=x: own(x), n)


@torch.no_grad()
def test_what_the_statistics_may_be() -> None:
    x = torch.randn(4, 3, 6, 6)
    x[0, :, 0, :3] = torch.tensor([float("inf"), -float("inf"), float("nan")])
    for name, value in (
        ("running_mean", float("inf")),
        ("running_mean", float("nan")),
        ("running_var", float("inf")),
        ("running_var", float("nan")),
        ("running_var", -1.0),
        ("running_var", 0.0),
        ("weight", float("inf")),
        ("bias", -float("inf")),
    ):
        net = chain(3, "silu")
        getattr(net[0], name)[1] = value
        for layout in (torch.contiguous_format, torch.channels_last):
            y = x.to(memory_format=layout)
            expected, result = both(lambda net=net, y=y: net(y))
            torch.testing.assert_close(result, expected, equal_nan=True)


@torch.no_grad()
def test_in_place_where_nobody_can_see_it() -> None:
    x, net = torch.randn(2, 8, 9, 9), block()
    seen: list[Tensor] = []
    agree(lambda: net(x))
    agree(lambda: net[:2](x))  # a norm alone
    large = torch.randn(2, 8, 64, 64)
    made = []
    for op in (OP, "batch_norm"):
        with switching.accelerated(op):
            net(large)
            made.append(storages(lambda: net(large)))
    assert made[1] - made[0] == 1

    def listened() -> list[Tensor]:
        seen.clear()
        return [net(x), *seen]

    hook = net[0].register_forward_hook(lambda m, a, y: seen.append(y))
    torch.testing.assert_close(*both(listened))
    hook.remove()
    user = torch.randn(2, 12, 9, 9)
    before = user.clone()
    agree(lambda: net[1:](user))
    assert torch.equal(user, before)


@torch.no_grad()
def test_what_is_in_place_may_be_anything() -> None:
    """Of one channel, of one pixel, from channels last and from views."""
    for c, k, x in (
        (8, 1, torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)),
        (8, 6, torch.randn(2, 8, 1, 1).to(memory_format=torch.channels_last)),
        (8, 6, torch.randn(2, 8, 9, 18)[..., ::2]),
        (8, 6, torch.randn(1, 8, 9, 9).to(memory_format=torch.channels_last)),
    ):
        net = block(c, k, "silu")
        agree(lambda net=net, x=x: net(x))


def test_modules_that_are_called() -> None:
    x = torch.randn(4, 12, 5, 5)

    def unlike(change: Callable[[nn.Sequential], Any]) -> nn.Sequential:
        net = chain(12)
        change(net)
        return net

    nets = [
        unlike(lambda net: net.train()),
        unlike(lambda net: setattr(net[1], "max_val", 4.0)),
        unlike(lambda net: setattr(net[1], "max_val", 6)),
        unlike(lambda net: net[1].register_forward_hook(lambda m, a, y: 2 * y)),
        unlike(lambda net: net[0].register_forward_pre_hook(lambda m, a: None)),
        unlike(lambda net: net.__setitem__(1, nn.Hardtanh(0.0, 6.0))),
        unlike(
            lambda net: net.__setitem__(
                0, nn.BatchNorm2d(12, track_running_stats=False)
            )
        ),
        unlike(lambda net: setattr(net[0], "running_mean", None)),
        unlike(lambda net: setattr(net[0], "running_var", None)),
        nn.Sequential(norm(12)),
        nn.Sequential(norm(12), nn.LeakyReLU()),
        nn.Sequential(nn.SyncBatchNorm(12).eval(), nn.ReLU()),
    ]
    with torch.no_grad():
        for i, net in enumerate(nets):
            stats = copy.deepcopy(net.state_dict())

            def run(net: nn.Sequential = net, stats: Any = stats) -> Any:
                net.load_state_dict(stats)
                try:
                    return net(x)
                except (RuntimeError, ValueError) as error:
                    return str(error)

            expected, result = both(run, 0)
            assert type(result) is type(expected), i
            if isinstance(result, Tensor):
                torch.testing.assert_close(result, expected)
            else:
                assert result == expected
    agree(lambda: chain_of_seed(x), 0)  # whose gradient is asked for


def chain_of_seed(x: Tensor) -> Tensor:
    torch.manual_seed(1)
    y: Tensor = chain(12)(x)
    y.sum().backward()
    return y.detach()


@torch.no_grad()
def test_errors_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    net = chain(12)
    for x in (torch.randn(3, 12, 5), torch.randn(3, 7, 5, 5)):
        for _ in range(2):
            with pytest.raises((ValueError, RuntimeError)) as stock:
                net(x)
            with switching.accelerated(OP), pytest.raises(stock.type) as ours:
                net(x)
            assert str(ours.value) == str(stock.value)
    twice = F.hardtanh

    def patched(*args: Any, **options: Any) -> Tensor:
        return 2 * twice(*args, **options)

    monkeypatch.setattr(F, "hardtanh", patched)
    x = torch.randn(3, 12, 5, 5)
    agree(lambda: net(x), 0)


@torch.no_grad()
def test_modes_and_toggling() -> None:
    net, x = block(), torch.randn(2, 8, 9, 9)
    with torch.inference_mode():
        agree(lambda: net(x))
    with torch.autocast("cpu"):
        expected, result = both(lambda: net(x), 0)
        assert result.dtype == expected.dtype
    with switching.accelerated(OP):
        traced = torch.jit.trace(net, x)
    assert "hardtanh" in str(traced.inlined_graph)
    per_sample = torch.func.vmap(net)
    agree(lambda: per_sample(x[None])[0], 0)
    expected = net(x)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        torch.testing.assert_close(copy.deepcopy(net)(x), expected)
        ptac.disable()
        assert torch.equal(net(x), expected)
        assert hits.accelerated == 1
    with switching.accelerated("batch_norm"):
        hits = switching.hits(OP)
        torch.testing.assert_close(net(x), expected)
        assert hits.accelerated == 0

"""ptac.fusion.register: what is checked, when it is called, and how it goes."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.fusion import custom

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_fusion.py"


class Scale(nn.Module):
    def __init__(self, by: float = 3.0) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(by))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


PATTERN = (nn.Linear, Scale)


def fused(linear: nn.Linear, scale: Scale, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(
        x, linear.weight * scale.by, linear.bias * scale.by
    )


def sample() -> tuple[tuple[nn.Module, ...], Tensor]:
    torch.manual_seed(0)
    return (nn.Linear(20, 30), Scale()), torch.randn(40, 20)


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    for fusion in list(custom._registered):
        fusion.remove()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.ReLU(), nn.Linear(8, 16), Scale(), nn.Linear(16, 4))


def results(net: nn.Module) -> list[Tensor]:
    torch.manual_seed(2)
    x = torch.randn(5, 8, requires_grad=True)
    y = net(x)
    y.sum().backward()
    with torch.no_grad():
        return [y.detach(), net(x), x.grad, *(p.grad for p in net.parameters())]


def test_it_is_called_while_the_switch_is_on() -> None:
    stock = results(network())
    fusion = ptac.fusion.register(PATTERN, fused, sample)
    assert results(network())[0].equal(stock[0])
    assert fusion.calls == 0
    with ptac.enable_operator_fusion():
        ours = results(network())
        assert (fusion.calls, fusion.given_back) == (2, 0)
        assert f"fusion fused: {fusion.calls} calls" in str(ptac.report())
        assert repr(fusion) == "<fusion fused of Linear, Scale: 2 calls>"
        fusion.remove()
        results(network())
        assert fusion.calls == 2
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b)


def test_registered_while_it_is_on() -> None:
    with ptac.enable_operator_fusion():
        fusion = ptac.fusion.register(PATTERN, fused, sample)
        results(network())
        assert fusion.calls == 2
    results(network())
    assert fusion.calls == 2


def test_what_it_does_not_take_goes_on() -> None:
    def only_long(linear: nn.Linear, scale: Scale, x: Tensor) -> Any:
        return fused(linear, scale, x) if len(x) > 30 else NotImplemented

    with ptac.enable_operator_fusion():
        fusion = ptac.fusion.register(PATTERN, only_long, sample)
        stock = results(network())
        assert (fusion.calls, fusion.given_back) == (0, 2)
        network()(torch.ones(31, 8))
        assert fusion.calls == 1
        again = ptac.fusion.register(PATTERN, fused, sample)
        ours = results(network())
        assert again.calls == 2
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b)


def test_without_gradients() -> None:
    def constant(linear: nn.Linear, scale: Scale, x: Tensor) -> Tensor:
        return fused(linear, scale, x).detach()

    with pytest.raises(ValueError, match="of one side alone"):
        ptac.fusion.register(PATTERN, constant, sample)
    fusion = ptac.fusion.register(PATTERN, constant, sample, gradients=False)
    with ptac.enable_operator_fusion():
        assert all(g is not None for g in results(network()))
        assert (fusion.calls, fusion.given_back) == (1, 1)


WATCHED: dict[str, Callable[[nn.Sequential], Any]] = {
    "a hook": lambda net: net[1].register_forward_hook(lambda *_: None),
    "another hook": lambda net: net[2].register_full_backward_hook(lambda *_: None),
    "a forward of its own": lambda net: net[2].__dict__.update(forward=lambda x: x * 3),
    "a subclass": lambda net: setattr(net[1], "__class__", type("L", (nn.Linear,), {})),
    "another order": lambda net: net.insert(2, nn.Identity()),
}


@pytest.mark.parametrize("how", WATCHED)
def test_modules_that_must_be_called(how: str) -> None:
    fusion = ptac.fusion.register(PATTERN, fused, sample)
    nets = [network(), network()]
    for net in nets:
        WATCHED[how](net)
    stock = nets[0](torch.ones(2, 8))
    with ptac.enable_operator_fusion():
        ours = nets[1](torch.ones(2, 8))
        assert fusion.calls == 0
    torch.testing.assert_close(ours, stock)


def _wrong(linear: nn.Linear, scale: Scale, x: Tensor) -> Tensor:
    return fused(linear, scale, x) * 1.0001


def _wrong_gradient(linear: nn.Linear, scale: Scale, x: Tensor) -> Tensor:
    y = fused(linear, scale, x)
    return y + (x.sum() - x.detach().sum())


def _wrong_dtype(linear: nn.Linear, scale: Scale, x: Tensor) -> Tensor:
    return fused(linear, scale, x).double()


def _wrong_shape(linear: nn.Linear, scale: Scale, x: Tensor) -> Tensor:
    return fused(linear, scale, x)[:1]


def _in_place(linear: nn.Linear, scale: Scale, x: Tensor) -> Tensor:
    y = fused(linear, scale, x)
    with torch.no_grad():
        x.add_(1)
    return y


@pytest.mark.parametrize(
    "function", [_wrong, _wrong_gradient, _wrong_dtype, _wrong_shape, _in_place]
)
def test_wrong_functions_are_refused(function: Any) -> None:
    with pytest.raises(ValueError, match=r"is not what|writes to its input"):
        ptac.fusion.register(PATTERN, function, sample)
    assert custom._registered == []


@pytest.mark.parametrize(
    ("pattern", "function", "error"),
    [
        ((), fused, ValueError),
        ((nn.Linear, "Scale"), fused, TypeError),
        ((nn.Linear, nn.ReLU), fused, ValueError),
        ((nn.ReLU,) * 9, fused, ValueError),
        (PATTERN, lambda linear, scale, x: None, TypeError),
        (PATTERN, lambda linear, scale, x: NotImplemented, TypeError),
    ],
)
def test_mistakes(pattern: Any, function: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ptac.fusion.register(pattern, function, sample)
    assert custom._registered == []


def test_a_function_that_raises_or_gives_nothing() -> None:
    how: list[Any] = [None]

    def changing(linear: nn.Linear, scale: Scale, x: Tensor) -> Any:
        if how[0] == "raise":
            raise KeyError("of the function's own")
        return fused(linear, scale, x) if how[0] is None else None

    ptac.fusion.register(PATTERN, changing, sample)
    with ptac.enable_operator_fusion():
        how[0] = "raise"
        with pytest.raises(KeyError, match="own"):
            network()(torch.ones(2, 8))
        how[0] = "nothing"
        with pytest.raises(TypeError, match="not a tensor"):
            network()(torch.ones(2, 8))


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        ptac.disable()
    assert "fusion fused: 1 calls, 0 given back" in capsys.readouterr().out
    assert len(EXAMPLE.read_text().splitlines()) <= 45

"""Networks of many families: gradients and outputs by accelerated convolutions.

Tolerances come from stock's own errors against float64, in the same run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import contract
import pytest
import switching
import torch
from convnets import (
    FAMILIES,
    OPS,
    Family,
    allowed,
    conv,
    images,
    inception,
    rms,
    smoothed,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import pai_torchacc as ptac


def gradients(make: Callable[[], nn.Module], dtype: torch.dtype) -> dict[str, Tensor]:
    """Of all parameters and of the images, and the output."""
    torch.manual_seed(0)
    net, x = make().to(dtype), images(dtype)
    y = net(x)
    y.backward(torch.randn(y.shape).to(dtype))
    found = {name: p.grad for name, p in net.named_parameters()}
    return found | {"output": y.detach(), "images": x.grad}


def hold(ours: dict[str, Tensor], make: Callable[[], nn.Module]) -> None:
    """Compare with stock's errors against float64."""
    with ptac.disabled():
        stock = gradients(make, torch.float32)
        exact = gradients(make, torch.float64)
    assert ours.keys() == stock.keys() == exact.keys()
    for name, truth in exact.items():
        assert ours[name].stride() == stock[name].stride()
        assert rms(ours[name] - truth) <= allowed(stock[name], truth), name


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients(name: str) -> None:
    def make() -> nn.Module:
        return smoothed(FAMILIES[name].make())

    with switching.accelerated(*OPS):
        forward, backward = map(switching.hits, OPS)
        ours = gradients(make, torch.float32)
        check_counts(FAMILIES[name], forward, backward)
        hold(ours, make)


def check_counts(
    family: Family, forward: switching.Hits, backward: switching.Hits
) -> None:
    """Of one step; each convolution has two gradients, of its images and weights."""
    assert forward.accelerated == family.served
    assert forward.forwarded == family.forwarded
    assert backward.accelerated == 2 * family.served
    assert backward.forwarded == {why: 2 * n for why, n in family.forwarded.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_steps_with_kinks(name: str) -> None:
    """ReLU and max pooling as they are: a unit that a rounding turns off may differ."""

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        net = FAMILIES[name].make()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            net(images()).square().mean().backward()
            optimizer.step()
        return [p.grad for p in net.parameters()]

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d_backward")
        ours = program()
        # The gradient of the images is wanted as well.
        assert hits.accelerated == 3 * 2 * FAMILIES[name].served
    for mine, theirs in zip(ours, stock, strict=True):
        assert rms(mine - theirs) <= 0.02 * rms(theirs)


@pytest.mark.parametrize("name", FAMILIES)
def test_evaluation(name: str) -> None:
    """Norms have statistics of other images, and chains of modules are one call."""
    torch.manual_seed(0)
    family = FAMILIES[name]
    net = family.make()
    net(images())
    net.eval()
    x = images()
    with torch.no_grad():
        stock, exact = net(x), copy.deepcopy(net).double()(x.double())
        with switching.accelerated(*OPS):
            hits = switching.hits("conv2d")
            ours = net(x)
            assert hits.accelerated == family.served
            assert hits.forwarded == family.forwarded
    assert rms(ours - exact) <= allowed(stock, exact)


def branches_of_5x5() -> list[str]:
    return [row for row in switching.runnable_rows("conv2d") if "of_5x5" in row]


@pytest.mark.parametrize("row", branches_of_5x5())
def test_branches_of_5x5(row: str) -> None:
    def make() -> nn.Module:
        return smoothed(inception())

    with switching.accelerated(*OPS, row=row):
        forward, backward = map(switching.hits, OPS)
        ours = gradients(make, torch.float32)
        assert forward.accelerated == 1
        assert forward.forwarded == {"shape": 6}
        # 1024 pixels are a short sum for the gradient of the weights: see winograd.h.
        assert backward.accelerated == 1
        hold(ours, make)


Change = Callable[[nn.Conv2d], nn.Module]


class Symmetric(nn.Module):
    """Weights that are the same from the left and from the right."""

    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.flip(3)) / 2


def symmetric(layer: nn.Conv2d) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize(
    "change",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        symmetric,
    ],
    ids=lambda f: f"{f.__module__.rpartition('.')[2]}.{f.__name__}",
)
def test_weights_that_are_computed(change: Change) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        layer = change(conv(20, 24)).to(dtype)
        x = contract.draw(2, 20, 12, 12, dtype=dtype).requires_grad_()
        y = layer(x)
        y.backward(contract.draw(*y.shape, dtype=dtype))
        return {"y": y, "x": x.grad}

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        layer = change(conv(20, 24))
        layer(torch.randn(2, 20, 12, 12)).square().sum().backward()
        return [p.grad for p in layer.parameters()]

    with switching.accelerated(*OPS):
        forward, backward = map(switching.hits, OPS)
        contract.hold(case)
        assert forward.accelerated == 1
        assert backward.accelerated == 2
        ours = program()
    for mine, theirs in zip(ours, program(), strict=True):
        assert rms(mine - theirs) <= 1e-5 * rms(theirs)

"""Plans run squeeze-and-excitation as one: against torch, and in float64."""

from __future__ import annotations

from functools import partial

import pytest
import switching
import torch
from planning import kinds, steps, twin, warm
from torch import Tensor, nn

import pai_torchacc as ptac

OP = "squeeze_excite"

ROWS = switching.runnable_rows(OP)
GATES = {"sigmoid": nn.Sigmoid, "hardsigmoid": nn.Hardsigmoid}
ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU, "none": nn.Identity}


class Block(nn.Module):
    """As torchvision and timm write it."""

    def __init__(
        self,
        channels: int,
        hidden: int,
        activation: str = "relu",
        gate: str = "sigmoid",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, hidden, 1, bias=bias)
        self.fc2 = nn.Conv2d(hidden, channels, 1, bias=bias)
        self.activation, self.gate = ACTIVATIONS[activation](), GATES[gate]()

    def weighed(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.pool(x))))
        gate: Tensor = self.gate(scale)
        return gate

    def forward(self, x: Tensor) -> Tensor:
        return self.weighed(x) * x


class Between(nn.Module):
    """In a network: nobody else reads what the block is given."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.Conv2d(3, 24, 3), nn.Conv2d(24, 5, 1)
        self.block = Block(24, 6, "silu")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.behind(self.block(torch.relu(self.before(x))))
        return y


class Timm(Block):
    """The mean over pixels by its dimensions, and x first."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc1(x.mean((2, 3), keepdim=True))
        return x * self.gate(self.fc2(self.activation(scale)))


class Kept(Block):
    """Somebody else reads the gate."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        gate = self.weighed(x)
        return x * gate, gate  # type: ignore[return-value]


class OfOthers(Block):
    """The means are of another tensor than what is weighed."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weighed(x) * (x + 1)


class OfRows(Block):
    """Means over one dimension alone."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc1(x.mean(3, keepdim=True))
        return x * self.gate(self.fc2(self.activation(scale)))


def difference(y: Tensor, exact: Tensor) -> float:
    return float((y.double() - exact).abs().max())


def check(module: nn.Module, x: Tensor, row: str | None = None) -> None:
    """Planned as one step, no further from float64 than twice as far as stock is."""
    module.eval()
    with torch.no_grad():
        stock = module(x)
        exact = module.double()(x.double())
        module.float()
        with switching.accelerated(OP, row=row):
            warm(module, x)
            assert "squeeze_excite" in kinds(module), steps(module)
            hits = switching.Hits(OP)
            y = module(x)
            assert hits.accelerated == 1
            again = module(x)
    assert torch.equal(y, again)
    rounding = 2e-7 * float(exact.abs().max())
    assert difference(y, exact) <= 2 * difference(stock, exact) + rounding


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_run_as_one(row: str, activation: str, gate: str, bias: bool) -> None:
    torch.manual_seed(0)
    check(Block(72, 18, activation, gate, bias), torch.randn(2, 72, 14, 14), row)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 1), (3, 5, 1, 7), (1, 33, 7, 7), (2, 130, 5, 9), (1, 16, 40, 40)],
)
@pytest.mark.parametrize("hidden", [1, 4, 7, 35])
def test_of_any_size(row: str, sizes: tuple[int, ...], hidden: int) -> None:
    torch.manual_seed(1)
    check(Timm(sizes[1], hidden), torch.randn(sizes) + 0.5, row)


@pytest.mark.parametrize("row", ROWS)
def test_bits_are_the_same_in_any_batch_and_with_any_threads(row: str) -> None:
    torch.manual_seed(2)
    module, x = Block(130, 33).eval(), torch.randn(3, 130, 30, 30)
    before = torch.get_num_threads()
    results = []
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            with switching.accelerated(OP, row=row), torch.no_grad():
                for images in (x, *x.split(1)):
                    copied = twin(module)
                    warm(copied, images)
                    results.append(copied(images))
    finally:
        torch.set_num_threads(before)
    whole, *others = results
    for i, y in enumerate(others, 1):
        assert torch.equal(y, whole if i % 4 == 0 else whole[i % 4 - 1 : i % 4])


def test_the_result_lies_where_the_images_did() -> None:
    torch.manual_seed(3)
    module, x = Between().eval(), torch.randn(2, 3, 20, 20)
    check(module, x)


def test_what_is_given_stays_as_it_was() -> None:
    torch.manual_seed(4)
    module, x = Block(16, 4).eval(), torch.randn(1, 16, 9, 9)
    kept = x.clone()
    check(module, x)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_comes_through(value: float) -> None:
    torch.manual_seed(5)
    module, x = Block(16, 4).eval(), torch.randn(2, 16, 9, 9)
    x[1, 3, 2, 2] = value
    with torch.no_grad():
        stock = module(x)
        with switching.accelerated(OP):
            warm(module, x)
            y = module(x)
    torch.testing.assert_close(y, stock, equal_nan=True)


@pytest.mark.parametrize("of", [Kept, OfOthers, OfRows])
def test_what_looks_alike_is_left_alone(of: type[Block]) -> None:
    torch.manual_seed(6)
    module, x = of(16, 4).eval(), torch.randn(2, 16, 9, 9)
    with torch.no_grad():
        stock = module(x)
        with switching.accelerated(OP):
            warm(module, x)
            assert "squeeze_excite" not in kinds(module)
            torch.testing.assert_close(module(x), stock)


def test_channels_last_and_other_dtypes_are_left_alone() -> None:
    torch.manual_seed(7)
    images = torch.randn(2, 16, 9, 9)
    for x in (images.to(memory_format=torch.channels_last), images.double()):
        module = Block(16, 4).eval().to(x.dtype)
        with torch.no_grad():
            stock = module(x)
            with switching.accelerated(OP):
                warm(module, x)
                assert "squeeze_excite" not in kinds(module)
                torch.testing.assert_close(module(x), stock)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("ops", [("mean",), ("mean", "conv2d"), ("sigmoid",)])
def test_parts_run_apart_where_no_row_is_faster(
    ops: tuple[str, ...], activation: str
) -> None:
    torch.manual_seed(8)
    module, x = Block(64, 16, activation).eval(), torch.randn(1, 64, 4, 4)
    with torch.no_grad():
        stock = module(x)
        for optimize in (ptac.optimize, partial(ptac.optimize, freeze=True)):
            with switching.accelerated(*ops, row="scalar"):
                planned = optimize(twin(module))
                for _ in range(3):
                    y = planned(x)
                assert "squeeze_excite" not in kinds(planned), steps(planned)
                ways = dict(zip(steps(planned), kinds(planned), strict=True))
                assert "conv2d" not in ops or ways.get("convolution") != "call"
                torch.testing.assert_close(y, stock)


def test_changed_weights_are_read() -> None:
    torch.manual_seed(9)
    module, x = Block(16, 4).eval(), torch.randn(2, 16, 9, 9)
    with torch.no_grad(), switching.accelerated(OP):
        warm(module, x)
        module.fc1.weight.mul_(-2)
        module.fc2.bias.data.add_(1)
        y = module(x)
    with torch.no_grad():
        torch.testing.assert_close(y, module(x))

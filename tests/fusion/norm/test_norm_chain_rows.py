"""A BatchNorm1d or 3d in eval mode, with the activation and Dropout behind it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import contract
import pytest
import switching
import torch
from torch import Tensor, nn

OP = "batch_norm_act"
ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    nn.SiLU,
    nn.Hardswish,
]


def norm(channels: int, **options: bool) -> nn.BatchNorm1d:
    """One in eval mode whose statistics are of some other data."""
    made = nn.BatchNorm1d(channels, **options).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
        if made.running_mean is not None:
            made.running_mean.normal_()
            made.running_var.uniform_(0.3, 2)
    return made


def last(volumes: Tensor) -> Tensor:
    return volumes.to(memory_format=torch.channels_last_3d)


def volume_norm(channels: int) -> nn.BatchNorm3d:
    made = nn.BatchNorm3d(channels).eval()
    made.load_state_dict(norm(channels).state_dict())
    return made


def block(k: int, n: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(k, n), norm(n), act(), nn.Dropout(0.3)).eval()


def case_of(rows: int, k: int, n: int, act: Callable[[], nn.Module]) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = 3 * contract.draw(rows, k, dtype=dtype)
        with torch.no_grad():
            return {"y": block(k, n, act).to(dtype)(x)}

    return case


@pytest.mark.parametrize("row", switching.runnable_rows(OP))
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(1, 9, 40), (70, 16, 33), (256, 40, 256)], ids=str)
def test_contract(
    row: str, act: Callable[[], nn.Module], sizes: tuple[int, int, int]
) -> None:
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        contract.hold(case_of(*sizes, act))
        assert hits.accelerated


@torch.no_grad()
def test_what_is_served() -> None:
    """The norm alone works in place where nobody has its input."""
    x, net = torch.randn(20, 12), norm(12)
    cases: list[tuple[nn.Module, Tensor, int]] = [
        (block(12, 8), x, 1),
        (nn.Sequential(nn.Linear(12, 12), net), x, 1),
        (nn.Sequential(net, nn.ReLU()), x, 1),
        (nn.Sequential(net, nn.ReLU()), x.t()[:, :12].contiguous().t(), 0),
        (nn.Sequential(net, nn.Identity()), x, 0),
        (nn.Sequential(net, nn.ReLU()), torch.randn(4, 12, 5), 1),
        (nn.Sequential(net, nn.ReLU()), torch.randn(4, 5, 12).transpose(1, 2), 0),
        (nn.Sequential(volume_norm(12), nn.SiLU()), torch.randn(2, 12, 3, 4, 5), 1),
        (
            nn.Sequential(volume_norm(12), nn.SiLU()),
            last(torch.randn(2, 12, 1, 1, 1)),
            0,
        ),
        (nn.Sequential(norm(12, track_running_stats=False), nn.ReLU()), x, 0),
        (nn.Sequential(norm(12, affine=False), nn.ReLU()), x, 1),
        (nn.Sequential(norm(12).double(), nn.ReLU()), x.double(), 0),
    ]
    for number, (model, given, n) in enumerate(cases):
        model.eval()
        before = given.clone()
        expected = model(given)
        with switching.accelerated(OP):
            hits = switching.hits(OP)
            ours = model(given)
            assert hits.accelerated == n, (number, hits)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        assert ours.stride() == expected.stride()
        contract.exactly(given, before)


@torch.no_grad()
def test_what_is_called() -> None:
    """Hooks see what they saw; a Dropout that drops is called."""
    x, seen = torch.randn(20, 12), []
    for place in range(4):
        model = block(12, 8)
        model[place].register_forward_hook(lambda *args: seen.append(args))
        expected = model(x)
        with switching.accelerated(OP):
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
    assert len(seen) == 8
    model = block(12, 8)
    model[3].train()
    torch.manual_seed(3)
    expected = model(x)
    with switching.accelerated(OP):
        torch.manual_seed(3)
        hits = switching.hits(OP)
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
        assert hits.accelerated == 1
    for made, given, wanted in (
        (norm(12), x[0], "2D or 3D"),
        (norm(12), x[:, :, None, None], "2D or 3D"),
        (volume_norm(12), x, "5D"),
        (nn.BatchNorm2d(12).eval(), x, "4D"),
    ):
        with (
            pytest.raises(ValueError, match=f"expected {wanted}"),
            switching.accelerated(OP),
        ):
            nn.Sequential(made, nn.ReLU())(given)


def test_training_is_as_ever() -> None:
    """In training mode, and where a gradient is asked for."""
    x, model = torch.randn(20, 12), block(12, 8)
    x.requires_grad_()

    def run(model: nn.Module) -> list[Tensor]:
        model(x).square().sum().backward()
        # Of the bias before a norm by the batch it is 0, but for rounding.
        learnt = (p for name, p in model.named_parameters() if name != "0.bias")
        return [*(p.grad for p in learnt if p.grad is not None), *model.buffers()]

    for mode in (False, True):
        model.train(mode)
        model[3].p = 0.0
        stock = run(copy.deepcopy(model))
        with switching.accelerated(OP):
            hits = switching.hits(OP)
            ours = run(copy.deepcopy(model))
            assert hits.accelerated == int(mode)
        for a, b in zip(ours, stock, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

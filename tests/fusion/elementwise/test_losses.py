"""Mean squares, smooth L1 and binary cross-entropy, and their gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

Loss = Callable[..., Tensor]

LOSSES: dict[str, Loss] = {
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "binary_cross_entropy": F.binary_cross_entropy,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
}
BACKWARD = ("mse_loss_backward", "smooth_l1_loss_backward")
BACKWARD = (*BACKWARD, "binary_cross_entropy_backward")
OPS = (*LOSSES, *BACKWARD)
REDUCTIONS = ("mean", "sum", "none")


def draw(name: str, *shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Predictions and targets."""
    x = contract.draw(*shape, dtype=dtype, scale=2)
    target = torch.rand(*shape).to(dtype)
    return (x.sigmoid() if name == "binary_cross_entropy" else x), target


def both(name: str, reduction: str, *shape: int) -> contract.Case:
    """A loss and its gradient."""

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x, target = draw(name, *shape, dtype=dtype)
        y = LOSSES[name](x.requires_grad_(), target, reduction=reduction)
        grad = torch.randn(y.shape).to(dtype)
        return {"y": y, "grad": torch.autograd.grad(y, x, grad)[0]}

    return case


@pytest.mark.parametrize("shape", [(7,), (30, 41), (20_001,)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("row", switching.runnable_rows("mse_loss"))
def test_losses_are_close(
    row: str, name: str, reduction: str, shape: tuple[int, ...]
) -> None:
    if row == "scalar" and len(shape) == 1:
        shape = (101,)
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in (name, f"{name}_backward") if op in OPS]
        contract.hold(both(name, reduction, *shape))
        assert all(h.accelerated for h in hits)


@pytest.mark.parametrize("row", switching.runnable_rows("mse_loss_backward"))
def test_gradients_of_mean_squares_have_stocks_bits(row: str) -> None:
    x, target, grad = torch.randn(1003), torch.randn(1003), torch.randn(1003)
    backward = torch.ops.aten.mse_loss_backward

    def run() -> list[Tensor]:
        one = grad[0]
        return [backward(one, x, target, k) for k in (1, 2)] + [
            backward(grad, x, target, 0)
        ]

    stock = run()
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("mse_loss_backward")
        contract.exactly(run(), stock)
        assert hits.accelerated == 3


SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 1e10, 100.0]


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "binary_cross_entropy"])
@pytest.mark.parametrize("row", switching.runnable_rows("mse_loss"))
def test_special_numbers(row: str, name: str) -> None:
    """Each with each as the target."""
    x = torch.tensor(SPECIAL).repeat(len(SPECIAL))
    target = torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = LOSSES[name](leaf, target, reduction="none")
        total = LOSSES[name](x, target)
        return [y.detach(), total, *torch.autograd.grad(y, leaf, torch.ones_like(y))]

    stock = run()
    with switching.accelerated(*OPS, row=row):
        for a, b in zip(run(), stock, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("row", switching.runnable_rows("binary_cross_entropy"))
def test_ends_of_probabilities(row: str) -> None:
    x = torch.tensor([0.0, 1.0, 1e-40, 1e-45, 1e-30, 0.5, 1 - 2**-24, -0.0]).repeat(5)
    target = torch.tensor([0.0, 1.0, 0.5, 0.25, 1e-3]).repeat_interleave(8)

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = F.binary_cross_entropy(leaf, target, reduction="none")
        return [y.detach(), *torch.autograd.grad(y, leaf, torch.ones_like(y))]

    stock = run()
    with switching.accelerated(*OPS, row=row):
        for a, b in zip(run(), stock, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=1e-6, equal_nan=True)


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x[:1],
    lambda x: x[0, 0, 0, 0],
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.transpose(2, 3),
    lambda x: x[:, :, ::2],
    lambda x: x[:, :, :1].expand(x.shape),
    lambda x: x[:0],
    lambda x: x.double(),
    lambda x: x.bfloat16(),
]
SERVED = {0, 1, 2, 3}


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_layouts_and_dtypes(name: str, reduction: str, number: int) -> None:
    x, target = draw(name, 3, 6, 7, 9, dtype=torch.float32)
    x, target = LAYOUTS[number](x), LAYOUTS[number](target)

    def run() -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = LOSSES[name](leaf, target, reduction=reduction)
        return [y.detach(), *torch.autograd.grad(y, leaf, torch.ones_like(y))]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        ours = run()
        if number in SERVED:
            assert hits.accelerated == 1
    for a, b in zip(ours, stock, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=3e-6, atol=1e-6, equal_nan=True)


def test_weights_and_other_targets_go_to_stock() -> None:
    x, target = torch.rand(4, 5), torch.rand(4, 5)
    one, logits = F.binary_cross_entropy, F.binary_cross_entropy_with_logits
    calls: list[Callable[[], Tensor]] = [
        lambda: one(x, target, weight=target),
        lambda: logits(x, target, weight=target),
        lambda: logits(x, target, pos_weight=target[0]),
        lambda: F.smooth_l1_loss(x, target, beta=0.0),
        lambda: F.smooth_l1_loss(x, target, beta=1e9),
        lambda: torch.ops.aten.mse_loss(x, target[0]),
    ]
    stock = [call() for call in calls]
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        contract.exactly([call() for call in calls], stock)
        assert not any(h.accelerated for h in hits)


def test_errors_are_torchs() -> None:
    aten, x = torch.ops.aten, torch.rand(2, 3)
    calls: list[Callable[[], object]] = [
        lambda: F.binary_cross_entropy(x - 5, x),
        lambda: F.binary_cross_entropy(x * float("nan"), x, reduction="none"),
        lambda: F.binary_cross_entropy(x, x + 5),
        lambda: F.binary_cross_entropy(x, x * float("nan"), reduction="none"),
        lambda: aten.binary_cross_entropy(x, torch.rand(4)),
        lambda: F.binary_cross_entropy(x, x.double()),
        lambda: aten.mse_loss(x, torch.rand(4)),
        lambda: aten.mse_loss_backward(x, x, torch.rand(4), 0),
        lambda: aten.smooth_l1_loss(x, x, 1, -1.0),
        lambda: aten.smooth_l1_loss_backward(x, x, torch.rand(4), 1, 1.0),
    ]

    stock = [contract.said(call) for call in calls]
    with switching.accelerated(*OPS):
        ours = [contract.said(call) for call in calls]
    for a, b in zip(ours, stock, strict=True):
        contract.exactly(a, b)


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_and_transforms(name: str) -> None:
    x, target = draw(name, 4, 6, dtype=torch.float32)
    loss = LOSSES[name]

    def run() -> list[Tensor]:
        each = torch.func.vmap(torch.func.grad(loss))(x, target)
        second = torch.func.hessian(loss)(x[0], target[0])
        return [each, second]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock, rtol=1e-5, atol=1e-6)
        leaf = x.double().requires_grad_()
        assert torch.autograd.gradgradcheck(loss, (leaf, target.double()))


def test_modules_copies_autocast_and_threads() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
    x, target = torch.randn(500, 8), torch.rand(500, 8)
    losses = nn.ModuleList([nn.MSELoss(), nn.SmoothL1Loss(), nn.BCELoss()])

    def run(model: nn.Module) -> list[Tensor]:
        sum(loss(model(x), target) for loss in losses).backward()  # type: ignore[union-attr]
        return [p.grad for p in model.parameters() if p.grad is not None]

    stock = run(copy.deepcopy(model))
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS if "logits" not in op]
        torch.testing.assert_close(run(copy.deepcopy(model)), stock)
        assert all(h.accelerated == 1 for h in hits)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours = F.mse_loss(model[0](x), target)
            with ptac.disabled():
                assert ours.dtype == F.mse_loss(model[0](x), target).dtype
        wide, other = torch.randn(100_003), torch.randn(100_003)
        one = F.mse_loss(wide, other)
        before = torch.get_num_threads()
        torch.set_num_threads(2 if before == 1 else 1)
        try:
            contract.exactly(F.mse_loss(wide, other), one)
        finally:
            torch.set_num_threads(before)

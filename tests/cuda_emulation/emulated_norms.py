"""LayerNorm, RMSNorm and softmax on CUDA, beside float64; what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import emulation
import internals
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import _C

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def layer_norm(x: Tensor, *weights: Tensor, shape: tuple[int, ...]) -> Tensor:
    return F.layer_norm(x, shape, *weights, eps=1e-3)


def rms_norm(x: Tensor, *weights: Tensor, shape: tuple[int, ...]) -> Tensor:
    return F.rms_norm(x, shape, *weights, eps=1e-3)


NORMS = {"layer_norm": (layer_norm, 2), "rms_norm": (rms_norm, 1)}
CASES = [
    ((3, 7, 64), 1),
    ((5, 1), 1),
    ((9, 33), 1),
    ((4, 3, 5, 8), 2),
    ((2, 1, 9000), 1),
    ((200, 24), 1),
    ((2, 1, 2, 1, 2, 3), 5),
]


def run(
    function: Callable[..., Tensor], tensors: list[Tensor], grad: Tensor, **kwargs: Any
) -> list[Tensor]:
    """The result and the gradients of all tensors."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = function(*leaves, **kwargs)
    y.backward(grad)
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def near(found: Tensor, exact: Tensor, dtype: torch.dtype, terms: int) -> None:
    """Within the last place of the dtype, and sums of float32 within their roundings.

    Terms of the sums are of the order of 1, also where they cancel.
    """
    assert found.dtype == dtype
    assert found.shape == exact.shape
    assert found.is_contiguous()
    size = max(1.0, float(exact.abs().max()))
    rounding = max(torch.finfo(dtype).eps, 2**-23 * max(4, terms**0.5))
    torch.testing.assert_close(
        found.cpu().double(), exact, rtol=rounding, atol=2 * rounding * size
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "n_last"), CASES)
@pytest.mark.parametrize("name", NORMS)
def test_norms(
    on: Any, name: str, sizes: tuple[int, ...], n_last: int, dtype: torch.dtype
) -> None:
    function, n_weights = NORMS[name]
    shape = sizes[len(sizes) - n_last :]
    x = (torch.randn(sizes) * 2 + 0.5).to(dtype)
    weights = [torch.randn(shape).to(dtype) for _ in range(n_weights)]
    grad = torch.randn(sizes).to(dtype)
    counted = hits(name), hits(name + "_backward")
    found = run(function, [t.cuda() for t in (x, *weights)], grad.cuda(), shape=shape)
    assert [c.accelerated for c in counted] == [1, 1]
    assert not any("norm" in call for call in emulation.stock_calls())
    exact = run(
        function, [t.double() for t in (x, *weights)], grad.double(), shape=shape
    )
    for ours, truth in zip(found, exact, strict=True):
        near(ours, truth, dtype, x.numel() // truth.numel() * 16)


@pytest.mark.parametrize("name", NORMS)
def test_what_a_norm_saves_is_stocks(on: Any, name: str) -> None:
    """Mean and rstd, so that either may compute the other direction."""
    x = torch.randn(2, 3, 40, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(40, device="cuda", dtype=torch.bfloat16)
    counted = hits(name)
    if name == "rms_norm":
        ours = torch.ops.aten._fused_rms_norm(x, [40], w, None)
        with ptac.disabled():
            stock = torch.ops.aten._fused_rms_norm(x, [40], w, None)
    else:
        ours = torch.ops.aten.native_layer_norm(x, [40], w, w, 1e-5)
        with ptac.disabled():
            stock = torch.ops.aten.native_layer_norm(x, [40], w, w, 1e-5)
    assert counted.accelerated == 1
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("without", ["x", "weight", "bias", "weights"])
def test_gradients_that_nobody_wants(on: Any, without: str) -> None:
    x, w, b = (torch.randn(s, device="cuda") for s in ((6, 40), (40,), (40,)))
    for name, tensor in (("x", x), ("weight", w), ("bias", b)):
        tensor.requires_grad_(without not in (name, name.rstrip("s") + "s"))
    w.requires_grad_(without not in ("weight", "weights"))
    b.requires_grad_(without not in ("bias", "weights"))
    counted = hits("layer_norm_backward")
    F.layer_norm(x, (40,), w, b).sum().backward()
    assert counted.accelerated == 1
    for tensor in (x, w, b):
        assert (tensor.grad is not None) == tensor.requires_grad


def test_norms_without_weights(on: Any) -> None:
    x = torch.randn(6, 40)
    for name, function in (("layer_norm", F.layer_norm), ("rms_norm", F.rms_norm)):
        counted = hits(name), hits(name + "_backward")
        found = run(function, [x.cuda()], x.cuda(), normalized_shape=(40,))
        assert [c.accelerated for c in counted] == [1, 1]
        # RMSNorm's default eps is that of the dtype in which it computes.
        options = {"eps": 1.1920929e-07} if name == "rms_norm" else {}
        exact = run(
            function, [x.double()], x.double(), normalized_shape=(40,), **options
        )
        for ours, truth in zip(found, exact, strict=True):
            near(ours, truth, torch.float32, 40)


def test_tensors_that_are_not_dense(on: Any) -> None:
    x = torch.randn(8, 3, 40).transpose(0, 1)
    weights = [torch.randn(80)[::2] for _ in range(2)]
    grad = torch.randn(40, 8, 3).permute(2, 1, 0)
    counted = hits("layer_norm"), hits("layer_norm_backward")
    found = run(
        layer_norm, [x.cuda(), *(w.cuda() for w in weights)], grad.cuda(), shape=(40,)
    )
    assert [c.accelerated for c in counted] == [1, 1]
    with ptac.disabled():
        expected = run(layer_norm, [x, *weights], grad, shape=(40,))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, 5, 32, 1000, 3001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(on: Any, width: int, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 7, width) * 3).to(dtype)
    grad = torch.randn(3, 7, width).to(dtype)
    counted = hits("softmax"), hits("softmax_backward")
    here = x.cuda().requires_grad_()
    y = F.softmax(here, -1)
    y.backward(grad.cuda())
    assert [c.accelerated for c in counted] == [1, 1]
    assert not any("softmax" in call for call in emulation.stock_calls())
    near(y.detach(), F.softmax(x.double(), -1), dtype, width)
    # Of the output that it is given, which it has rounded.
    rounded = y.detach().cpu().double()
    product = rounded * grad.double()
    exact = product - rounded * product.sum(-1, True)
    assert here.grad is not None
    eps = torch.finfo(dtype).eps
    near_zero = 2**-20 * float(product.abs().sum(-1).max())
    torch.testing.assert_close(
        here.grad.cpu().double(), exact, rtol=eps, atol=near_zero
    )


def test_what_is_refused(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda")
    w = torch.ones(6, device="cuda")
    counted = hits("layer_norm"), hits("softmax")
    F.layer_norm(x.double(), (6,))
    F.layer_norm(x.half(), (6,), w.half(), w.half())
    F.layer_norm(x[:0], (6,), w)
    with pytest.raises(RuntimeError):
        F.layer_norm(x, (5,))
    F.softmax(x, 0)
    F.softmax(x.half(), -1, dtype=torch.float32)
    with ptac.disabled():
        F.layer_norm(x, (6,))
    assert counted[0].accelerated == 1
    assert counted[0].forwarded == {
        "dtype": 1, "empty": 1, "argument": 1, "disabled in this thread": 1
    }  # fmt: skip
    assert counted[1].forwarded == {"argument": 2}


def test_stock_gets_all_dimensions(on: Any) -> None:
    """Of float64, which no row takes; more than the four that most calls have."""
    shape = (2, 1, 2, 1, 2, 3)
    x = torch.randn(4, *shape, dtype=torch.double)
    counted = hits("layer_norm"), hits("layer_norm_backward")
    found = run(layer_norm, [x.cuda()], x.cuda(), shape=shape)
    assert [c.forwarded for c in counted] == [{"dtype": 1}] * 2
    with ptac.disabled():
        for ours, theirs in zip(
            found, run(layer_norm, [x], x, shape=shape), strict=True
        ):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


def test_weights_of_another_dtype_are_stocks(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda", dtype=torch.bfloat16)
    w = torch.ones(6, device="cuda")
    counted = hits("layer_norm")
    torch.ops.aten.native_layer_norm(x, [6], w, w, 1e-5)
    assert counted.forwarded == {"dtype": 1}


def test_shadow_checks_compare_every_output(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda", requires_grad=True)
    w = torch.randn(6, device="cuda", requires_grad=True)
    counted = hits("layer_norm"), hits("layer_norm_backward")
    with ptac.enable(FUSION, verify=1):
        F.layer_norm(x, (6,), w).sum().backward()
    assert [c.accelerated for c in counted] == [1, 1]
    assert any("native_layer_norm" in call for call in emulation.stock_calls())
    assert not ptac.status()[FUSION].get("quarantined")


def test_a_transformer_trains(on: Any) -> None:
    """Losses of an encoder as on the CPU; what is counted ran on the device."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        torch.nn.RMSNorm(16),
        torch.nn.Linear(16, 4),
        torch.nn.Softmax(-1),
    )
    x, target = torch.randn(3, 5, 16), torch.rand(3, 5, 4)

    def losses(device: str) -> list[float]:
        here = copy.deepcopy(model).to(device)
        optimizer = torch.optim.AdamW(here.parameters(), lr=0.01)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.mse_loss(here(x.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    names = [f"{op}{way}" for op in (*NORMS, "softmax") for way in ("", "_backward")]
    counted = {name: hits(name) for name in names}
    on_cuda = losses("cuda")
    least = {"layer_norm": 12, "rms_norm": 3, "softmax": 3}
    for name, count in counted.items():
        assert count.accelerated >= least[name.removesuffix("_backward")], name
    with ptac.disabled():
        assert on_cuda == pytest.approx(losses("cpu"), rel=1e-4)


def test_calls_come_as_cpp_makes_them(on: Any) -> None:
    """Or boxed, where a torch does not say where it keeps its kernels' addresses."""
    names = {
        f"cuda:{op}{way}" for op in (*NORMS, "softmax") for way in ("", "_backward")
    }
    assert names <= set(_C.override_installed())
    typed = names & set(internals.override_typed())
    assert typed == (set() if emulation.HIDDEN else names)


def test_a_norm_is_captured(on: Any) -> None:
    x = torch.randn(4, 64, device="cuda", requires_grad=True)
    w = torch.randn(64, device="cuda", requires_grad=True)
    F.rms_norm(x, (64,), w).sum().backward()
    stream = torch.Stream("cuda")
    counted = hits("rms_norm"), hits("rms_norm_backward")
    with emulation.capturing(stream):
        F.rms_norm(x, (64,), w).sum().backward()
    assert [c.accelerated for c in counted] == [1, 1]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_wide_rows_are_summed_up_in_few_parts(on: Any, norm: str) -> None:
    """What the weights' gradients are put together from is less than the gradient."""
    x = torch.randn(64, 8200).cuda().requires_grad_()
    w = torch.ones(8200).cuda().requires_grad_()
    y = getattr(F, norm)(x, (8200,), w)
    grad = torch.ones_like(y)
    counted = hits(f"{norm}_backward")
    most = emulation.most_bytes(lambda: y.backward(grad))
    assert counted.accelerated == 1
    assert most < 2 * x.numel() * x.element_size()

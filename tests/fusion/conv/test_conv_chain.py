"""A Conv2d in nn.Sequential with the norm, ReLU and pool behind it, as one call."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import contract
import convnets
import internals
import pytest
import switching
import torch
from chains import called, norm
from torch import Tensor, nn

import pai_torchacc as ptac

CHAINS = ("r", "n", "p", "nr", "rp", "np", "nrp")
"""What follows the Conv2d: n(orm), r(elu), p(ool)."""

SHAPES = [*convnets.SHAPES, (4, 3, 40, 28, 31), (2, 256, 256, 6, 7)]

OPS = "conv2d", "max_pool2d"
ROWS = [row for row in switching.runnable_rows("conv2d") if "4x4" not in row]


def behind(chain: str, channels: int) -> list[nn.Module]:
    made = {"r": nn.ReLU, "n": lambda: norm(channels), "p": lambda: nn.MaxPool2d(2)}
    return [made[name]() for name in chain]


def net(
    chain: str, c: int = 16, k: int = 24, kernel: int = 3, bias: bool = True
) -> nn.Sequential:
    conv = nn.Conv2d(c, k, kernel, padding=kernel // 2, bias=bias)
    return nn.Sequential(conv, *behind(chain, k))


@lru_cache(2)
def chain_case(
    chain: str, shape: convnets.Shape, kernel: int, bias: bool
) -> contract.Case:
    n, c, k, h, w = shape

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        model = net(chain, c, k, kernel, bias).to(dtype)
        x = contract.draw(n, c, h, w, dtype=dtype)
        with torch.no_grad():
            return {"y": model(x)}

    return case


@contextlib.contextmanager
def serving(row: str) -> Iterator[None]:
    """Serve all convolutions that this row takes by it."""
    with switching.pins(["conv2d"], row), switching.accelerated(*OPS):
        yield


def takes(row: str, shape: convnets.Shape, kernel: int) -> bool:
    if row.startswith("direct"):
        return shape[1] <= 4
    return row.startswith("winograd") and (kernel == 3 or 4 <= shape[1] <= 128)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_contract(row: str, chain: str, shape: convnets.Shape) -> None:
    kernel = 5 if "5x5" in row else 3
    with serving(row):
        hits, pools = switching.hits("conv2d"), switching.hits("max_pool2d")
        contract.hold(chain_case(chain, shape, kernel, bias=chain != "nrp"))
        if takes(row, shape, kernel):
            assert hits.accelerated >= 1
            is_called = "p" in chain and row.startswith("direct")
            assert (pools.accelerated > 0) == is_called


@pytest.mark.parametrize("chain", CHAINS)
def test_no_module_is_called(chain: str) -> None:
    model, x = net(chain), torch.randn(2, 16, 12, 12)
    with torch.no_grad(), switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        assert called(lambda: model(x)) == set()
        assert hits.accelerated == 1


def test_chains_begin_and_end_anywhere() -> None:
    model = nn.Sequential(
        nn.Identity(),
        *net("nr"),
        *net("rp", 24, 32),
        nn.Dropout(0.5),
        *net("n", 32, 16),
        nn.Sigmoid(),
        nn.Conv2d(16, 16, 3, padding=1),
    ).eval()
    x = torch.randn(2, 16, 12, 12)
    with torch.no_grad(), switching.accelerated(*OPS):
        files = called(lambda: model(x))
    assert files == {"linear.py", "dropout.py", "activation.py", "conv.py"}


def hook(model: nn.Sequential) -> None:
    model[1].register_forward_hook(lambda *_: None)


def hook_of_the_convolution(model: nn.Sequential) -> None:
    model[0].register_forward_pre_hook(lambda *_: None)


def training(model: nn.Sequential) -> None:
    model.train()


def no_statistics(model: nn.Sequential) -> None:
    model[1] = nn.BatchNorm2d(24, track_running_stats=False).eval()


def subclass(model: nn.Sequential) -> None:
    class Norm(nn.BatchNorm2d):
        pass

    model[1].__class__ = Norm


def other_forward(model: nn.Sequential) -> None:
    model[1].forward = lambda x: x


def statistic_in_the_instance(model: nn.Sequential) -> None:
    mean = model[1].running_mean * 2
    del model[1].running_mean
    model[1].running_mean = mean


def reflected(model: nn.Sequential) -> None:
    model[0] = nn.Conv2d(16, 24, 3, padding=1, padding_mode="reflect")


def own_convolution(model: nn.Sequential) -> None:
    model[0]._conv_forward = lambda x, w, b: torch.ones(2, 24, 12, 12)


def grouped(model: nn.Sequential) -> None:
    model[0] = nn.Conv2d(16, 24, 3, padding=1, groups=2)


def same(model: nn.Sequential) -> None:
    model[0] = nn.Conv2d(16, 24, 3, padding="same")


def strided(model: nn.Sequential) -> None:
    model[0] = nn.Conv2d(16, 24, 3, padding=1, stride=2)


@pytest.mark.parametrize(
    "change",
    [
        hook,
        hook_of_the_convolution,
        training,
        no_statistics,
        subclass,
        other_forward,
        statistic_in_the_instance,
        reflected,
        own_convolution,
        grouped,
        same,
        strided,
    ],
)
def test_other_modules_are_called(change: Callable[[nn.Sequential], None]) -> None:
    model, x = net("n"), torch.randn(2, 16, 12, 12)
    change(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        expected = twin(x)
        with switching.accelerated("conv2d"):
            files = called(lambda: contract_close(model(x), expected))
    assert "conv.py" in files
    contract.exactly(dict(model.named_buffers()), dict(twin.named_buffers()))


def contract_close(ours: Tensor, stock: Tensor) -> None:
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


def test_a_property_of_a_base_class(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net("r"), torch.randn(2, 16, 12, 12)
    base = nn.modules.conv._ConvNd
    with torch.no_grad(), switching.accelerated("conv2d"):
        zeros = property(lambda self: torch.zeros(24, 16, 3, 3))
        monkeypatch.setattr(base, "weight", zeros, raising=False)
        assert torch.equal(model(x)[0, :, 0, 0], model[0].bias.relu())
        monkeypatch.delattr(base, "weight")
        assert called(lambda: model(x)) == set()


def test_without_memory_for_the_result_comes_torchs_error() -> None:
    program = """
import torch, switching, pai_torchacc as ptac
from torch import nn
ptac.enable_memory_pool(cap=64 << 20)
model = nn.Sequential(nn.Conv2d(64, 512, 3, padding=1), nn.ReLU())
x = torch.randn(8, 64, 72, 72)
with torch.no_grad(), switching.accelerated("conv2d"):
    hits = switching.hits("conv2d")
    try:
        model(x)
    except RuntimeError as error:
        print("memory" in str(error), hits.forwarded)
"""
    found = switching.python(program).strip()
    assert found == "True {'no memory to work in': 1}"


def test_a_norm_without_variance_is_called() -> None:
    model, x = net("n"), torch.randn(2, 16, 12, 12)
    model[1].eps = 1e-100
    model[1].running_var[3] = 0
    with torch.no_grad():
        expected = model(x)
        with switching.accelerated("conv2d"):
            assert called(lambda: model(x)) == {"conv.py", "batchnorm.py"}
            ours = model(x)
    assert torch.equal(ours[:, 3].isnan(), expected[:, 3].isnan())


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(2, 2, 1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d((2, 1)),
        nn.MaxPool2d(2, dilation=2),
    ],
    ids=str,
)
def test_other_pools_are_called(pool: nn.MaxPool2d) -> None:
    model, x = net("r"), torch.randn(2, 16, 13, 13)
    model.append(pool)
    with torch.no_grad():
        expected = model(x)
        with switching.accelerated(*OPS):
            contract_close(model(x), expected)
            assert "pooling.py" in called(lambda: model(x))


@pytest.mark.parametrize("size", [2, (2, 2)])
def test_sizes_of_pools_as_they_may_be_given(size: Any) -> None:
    model, x = net("r"), torch.randn(2, 16, 13, 13)
    model.append(nn.MaxPool2d(size, stride=size, padding=0))
    with torch.no_grad(), switching.accelerated(*OPS):
        assert called(lambda: model(x)) == set()


def test_a_pool_that_is_switched_off_is_called() -> None:
    model, x = net("rp"), torch.randn(2, 16, 13, 13)
    with torch.no_grad(), switching.accelerated("conv2d"):
        assert called(lambda: model(x)) == {"pooling.py"}


def test_too_small_for_the_pool() -> None:
    model, x = net("rp"), torch.randn(2, 16, 1, 8)
    with (
        torch.no_grad(),
        switching.accelerated(*OPS),
        pytest.raises(RuntimeError, match="Output size is too small"),
    ):
        model(x)


def test_gradients_take_the_modules() -> None:
    model, x = net("nr"), torch.randn(2, 16, 12, 12)
    twin = copy.deepcopy(model)
    twin(x).sum().backward()
    with switching.accelerated("conv2d"):
        assert "conv.py" in called(lambda: model(x).sum().backward())
        model.requires_grad_(False)
        assert called(lambda: model(x)) == set()
        assert "conv.py" in called(lambda: model(x.clone().requires_grad_()))
        with torch.inference_mode():
            model.requires_grad_(True)
            assert called(lambda: model(x)) == set()
            assert model(x).is_inference()
    contract_close(model[0].weight.grad, twin[0].weight.grad)


@pytest.mark.parametrize("name", ["running_mean", "running_var", "weight", "bias"])
def test_edits_of_the_norm_are_seen(name: str) -> None:
    model, x = net("nr"), torch.randn(2, 16, 12, 12)

    def in_place(t: Tensor) -> None:
        t.add_(0.5)

    def by_data(t: Tensor) -> None:
        t.data = t.data + 0.5

    def by_numpy(t: Tensor) -> None:
        t.detach().numpy()[:] += 0.5

    def by_loading(t: Tensor) -> None:
        model[1].load_state_dict({**model[1].state_dict(), name: t + 0.5})

    for edit in (in_place, by_data, by_numpy, by_loading):
        with torch.no_grad():
            edit(getattr(model[1], name))
            expected = model(x)
            with switching.accelerated("conv2d"):
                hits = switching.hits("conv2d")
                contract_close(model(x), expected)
                assert hits.accelerated == 1


def test_what_is_not_finite() -> None:
    """NaN passes ReLU and pool; infinities stay where and what they are."""
    x = torch.randn(2, 16, 24, 24)
    x[0, 3, 4, 5], x[1, 2, 20, 20], x[1, 9, 3, 15] = math.nan, math.inf, -math.inf
    for chain in CHAINS:
        model = net(chain)
        with torch.no_grad():
            expected = model(x)
            for row in ROWS:
                with serving(row):
                    ours = model(x)
                is_finite = expected.isfinite()
                assert torch.equal(ours.isfinite(), is_finite)
                assert torch.equal(ours.isnan(), expected.isnan())
                assert torch.equal(ours[expected.isinf()], expected[expected.isinf()])
                contract_close(ours[is_finite], expected[is_finite])


def test_what_is_given_back_is_counted_once() -> None:
    model, x = net("nrp"), torch.full((2, 16, 24, 24), math.nan)
    with torch.no_grad():
        expected = model(x)
        with switching.accelerated(*OPS):
            hits = switching.hits("conv2d")
            files = {"batchnorm.py", "activation.py", "pooling.py", "conv.py"}
            assert called(lambda: model(x)) == files
            torch.testing.assert_close(model(x), expected, equal_nan=True)
            assert hits.forwarded == {"values": 2}
            assert (hits.accelerated, hits.failed) == (0, 0)


def test_a_failure_is_counted_once() -> None:
    model, x = net("nrp"), torch.randn(2, 16, 24, 24)
    try:
        with torch.no_grad():
            expected = model(x)
            with switching.accelerated(*OPS):
                hits = switching.hits("conv2d")
                internals.inject_failure("conv2d")
                assert torch.equal(model(x), expected)
                assert (hits.accelerated, hits.failed) == (0, 1)
                assert hits.forwarded == {}
    finally:
        internals.reset_quarantine()


def test_shadow_checks_see_stocks_operators() -> None:
    model, x = net("nrp"), torch.randn(2, 16, 12, 12)
    with torch.no_grad(), switching.accelerated("conv2d", verify=1):
        hits = switching.hits("conv2d")
        files = {"conv.py", "batchnorm.py", "activation.py", "pooling.py"}
        assert called(lambda: model(x)) == files
        assert hits.accelerated == 1


def test_switched_off() -> None:
    model, x = net("nrp"), torch.randn(2, 16, 12, 12)
    with torch.no_grad():
        expected = model(x)
        with switching.accelerated(*OPS), ptac.disabled():
            assert torch.equal(model(x), expected)
        assert torch.equal(model(x), expected)

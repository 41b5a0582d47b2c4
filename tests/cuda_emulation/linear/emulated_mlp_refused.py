"""What blocks of two layers on CUDA leave to stock, and what follows a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import emulation
import internals
import linear_layers
import pytest
import torch
from linear_layers import (
    ACTIVATIONS,
    DTYPES,
    LEAST_OF_BLOCKS,
    SEEDS,
    block,
    from_work,
    hold,
    launched,
    step,
)
from linear_layers import MLP as FORWARD
from linear_layers import MLP_BACKWARD as BACKWARD
from switching import FUSION, hits
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import pai_torchacc as ptac

of_any_size = linear_layers.of_any_size


def drawn() -> Tensor:
    return torch.randn(4, 6, device="cuda")


def _hook(*_: Any) -> None:
    return None


def _hooked(net: nn.Sequential) -> Any:
    return net[1].register_forward_hook(_hook)


def _hooked_dropout(net: nn.Sequential) -> Any:
    net.insert(2, nn.Dropout(0.0))
    return net[2].register_full_backward_hook(_hook)


def _parametrized(net: nn.Sequential) -> Any:
    return parametrizations.weight_norm(net[2])


def _own_forward(net: nn.Sequential) -> None:
    net[2].forward = net[2].forward


def _own_class(net: nn.Sequential) -> None:
    net[2].__class__ = type("Linear", (nn.Linear,), {})


CHANGES: list[Callable[[nn.Sequential], Any]] = [
    _hooked, _hooked_dropout, _parametrized, _own_forward, _own_class,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_modules_that_are_not_torchs_alone(on: Any, change: Callable[..., Any]) -> None:
    net = block(6, 16, 5)
    counted = hits(FORWARD)
    change(net)
    net(drawn()).sum().backward()
    assert (counted.accelerated, counted.forwarded) == (0, {})


def test_hooks_that_listen_to_all_modules(on: Any) -> None:
    net, x, counted = block(6, 16, 5), drawn(), hits(FORWARD)
    handle = nn.modules.module.register_module_forward_hook(_hook)
    net(x)
    handle.remove()
    assert (counted.accelerated, counted.forwarded) == (0, {})
    net(x)
    assert counted.accelerated == 1


def test_what_is_refused(on: Any) -> None:
    net, counted = block(6, 16, 5), hits(FORWARD)
    net(drawn()[:0])
    net.double()(drawn().double())
    net.float()(drawn().expand(3, 4, 6).transpose(0, 1))
    net[2].half()
    with pytest.raises(RuntimeError):
        net(drawn())
    assert counted.accelerated == 0
    assert counted.forwarded == {"empty": 1, "dtype": 2, "layout": 1}


def test_small_blocks_are_trained_by_stock(on: Any) -> None:
    """Whose nodes take less of the host's time than ours."""
    from_work(LEAST_OF_BLOCKS)
    counted, since = hits(FORWARD), len(emulation.launches())
    block(6, 16, 5, "gelu")(drawn()).sum().backward()
    assert counted.forwarded == {"not measured faster": 1}
    assert "product_208" not in launched(since)


@pytest.mark.parametrize(
    ("options", "is_ours"),
    [({"exclude": [FORWARD]}, False), ({"exclude": ["linear_act"]}, True)],
)
def test_excluding(options: dict[str, Any], is_ours: bool) -> None:
    with ptac.enable(FUSION, **options):
        blocks, layers = hits(FORWARD), hits("linear_act")
        block(6, 16, 5)(drawn()).sum().backward()
        assert (blocks.accelerated, layers.accelerated) == (is_ours, not is_ours)
    assert blocks.forwarded == ({} if is_ours else {"excluded": 1})


def test_including_alone() -> None:
    with ptac.enable_operator_fusion([FORWARD]):
        forward, backward = hits(FORWARD), hits(BACKWARD)
        block(6, 16, 5)(drawn()).sum().backward()
        assert (forward.accelerated, backward.accelerated) == (1, 1)


def test_at_level_exact_blocks_are_stocks() -> None:
    with ptac.enable(FUSION, numerics="exact"):
        counted = hits(FORWARD)
        block(6, 16, 5)(drawn()).sum().backward()
        assert counted.accelerated == 0


def test_algorithms_that_have_to_be_deterministic_are_stocks(on: Any) -> None:
    net, x, counted = block(6, 16, 5), drawn(), hits(FORWARD)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        net(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.forwarded == {"mode or transform active": 1}


def test_transforms_are_stocks(on: Any) -> None:
    net, x = block(6, 16, 5), drawn()
    counted = hits(FORWARD)
    torch.func.grad(lambda t: net(t).sum())(x)
    assert counted.accelerated == 0


EPILOGUES = (2, 4, 6, 36, 164, 152, 208, 136, 192, 512)


def test_training_by_a_library_without_epilogues(on: Any) -> None:
    for epilogue in EPILOGUES:
        emulation.cublaslt().emulated_refuse(epilogue)
    backward = hits(BACKWARD)
    for activation in ACTIVATIONS:
        hold(
            lambda a=activation: block(17, 40, 9, a),
            lambda: torch.randn(21, 17),
            torch.float32,
        )
    assert backward.accelerated == SEEDS * len(ACTIVATIONS)


def test_a_product_that_fails(on: Any) -> None:
    """Stock does the call, and those that follow."""
    net, x, grad = block(6, 16, 5), torch.randn(4, 6), torch.randn(4, 5)
    with ptac.disabled():
        expected = step(net, x.cuda(), grad)
    counted = hits(FORWARD)
    emulation.cublaslt().emulated_break(13)
    found = [step(net, x.cuda(), grad)]
    emulation.cublaslt().emulated_break(0)
    found.append(step(net, x.cuda(), grad))
    assert (counted.accelerated, counted.failed) == (0, 1)
    for each in found:
        for name, t in expected.items():
            torch.testing.assert_close(each[name], t)
    assert "CUBLAS_STATUS_EXECUTION_FAILED" in ptac.report()


@pytest.mark.parametrize("name", [FORWARD, BACKWARD])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_failure_in_one_direction(on: Any, activation: str, name: str) -> None:
    """The other one goes on with what stock has computed."""
    net, x, grad = block(6, 9, 5, activation), torch.randn(4, 6), torch.randn(4, 5)
    with ptac.disabled():
        expected = step(net, x.cuda(), grad)
    forward, backward = hits(FORWARD), hits(BACKWARD)
    internals.inject_failure(name)
    found = step(net, x.cuda(), grad)
    assert forward.failed + backward.failed == 1
    assert forward.accelerated + backward.accelerated == 1
    for key, t in expected.items():
        torch.testing.assert_close(found[key], t)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_verify_compares(activation: str, dtype: torch.dtype) -> None:
    with ptac.enable(FUSION, verify=1):
        forward, backward = hits(FORWARD), hits(BACKWARD)
        net = block(6, 9, 5, activation, dtype=dtype)
        step(net, drawn().to(dtype), torch.randn(4, 5))
        step(net, drawn().to(dtype), torch.randn(4, 5))
        assert (forward.accelerated, backward.accelerated) == (2, 2)


def test_verify_finds_wrong_numbers() -> None:
    with ptac.enable(FUSION, verify=1):
        net, x = block(6, 16, 5, "gelu"), drawn()
        with ptac.disabled():
            expected = net(x).cpu()
        emulation.load().emulated_skip_launch()  # of the activation
        assert torch.equal(net(x).cpu(), expected)
        assert "shadow check found" in ptac.report()
    internals.reset_quarantine()

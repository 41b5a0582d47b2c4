"""Steps of torch.optim and zero_grad on CUDA tensors: numbers, counters, launches."""

from __future__ import annotations

from typing import Any

import emulation
import internals
import pytest
import torch
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac

SIZES = ((3, 5), (7,), (0,), (2, 1, 4))
CLASSES: dict[str, Any] = {
    "sgd_step": torch.optim.SGD,
    "adam_step": torch.optim.Adam,
    "adamw_step": torch.optim.AdamW,
}
SUFFIX = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
"""By which kernels are named."""


def parameters(device: str, dtype: torch.dtype = torch.float32) -> list[Any]:
    r = torch.Generator().manual_seed(1)
    made = [torch.randn(size, generator=r).to(device, dtype) for size in SIZES]
    return [torch.nn.Parameter(p) for p in made]


def gradients(params: list[Any], step: int) -> list[Tensor]:
    r = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=r).to(p.device, p.dtype) for p in params]


def params_of(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def give(params: list[Any], grads: list[Tensor]) -> None:
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad


def steps(optimizer: Any, n: int, first: int = 0) -> None:
    for step in range(first, first + n):
        give(params_of(optimizer), gradients(params_of(optimizer), step))
        optimizer.step()


def launched(since: int) -> list[str]:
    return [launch.split()[0] for launch in emulation.launches()[since:]]


def agree(ours: list[Tensor], stock: list[Tensor]) -> None:
    """Within the roundings of a few steps of moderate numbers."""
    for a, b in zip(ours, stock, strict=True):
        near = 32 * torch.finfo(a.dtype).eps
        torch.testing.assert_close(
            a.detach().cpu(), b.detach().cpu(), rtol=0, atol=near
        )


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("sgd_step", {"lr": 0.1}),
    ("sgd_step", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("sgd_step", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("sgd_step", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}),
    ("adam_step", {"lr": 0.01, "weight_decay": 0.01}),
    ("adam_step", {"lr": 0.01, "amsgrad": True, "maximize": True}),
    ("adamw_step", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.4, 0.99)}),
]
each = pytest.mark.parametrize(("op", "options"), OPTIONS, ids=str)


@each
@pytest.mark.parametrize("dtype", SUFFIX, ids=str)
def test_steps(on: Any, op: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    """One launch a step; states lie and are called as torch's own."""
    if op != "sgd_step" and dtype == torch.float16:
        options = {**options, "eps": 1e-3}
    ours = CLASSES[op](parameters("cuda", dtype), **options)
    stock = CLASSES[op](parameters("cpu", dtype), foreach=False, **options)
    since, counted = len(emulation.launches()), hits(op)
    steps(ours, 5)
    assert counted.accelerated == 5, counted.forwarded
    kernel = f"{op.replace('adamw', 'adam')}_{SUFFIX[dtype]}"
    assert launched(since) == [kernel] * 5
    with ptac.disabled():
        steps(stock, 5)
    agree(params_of(ours), params_of(stock))
    for a, b in zip(ours.state.values(), stock.state.values(), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            if a[key] is not None:
                assert (a[key].dtype, a[key].shape) == (b[key].dtype, b[key].shape)
                assert a[key].is_cuda == (key != "step")
                agree([a[key]], [b[key]])


@each
def test_a_program_may_change_sides(on: Any, op: str, options: dict[str, Any]) -> None:
    """Stock goes on where we have left, and we where stock has."""
    ours = CLASSES[op](parameters("cuda"), **options)
    stock = CLASSES[op](parameters("cpu"), **options)
    steps(ours, 2)
    with ptac.disabled():
        steps(ours, 2, first=2)
    ours.load_state_dict(ours.state_dict())
    counted = hits(op)
    steps(ours, 2, first=4)
    assert counted.accelerated == 2
    with ptac.disabled():
        steps(stock, 6)
    agree(params_of(ours), params_of(stock))


@pytest.mark.parametrize("op", ["adam_step", "adamw_step"])
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_capturable(on: Any, op: str, on_device: bool) -> None:
    """Captured steps read counts and rate on the device; nothing waits for it."""
    lr: Any = torch.tensor(0.01, device="cuda") if on_device else 0.01
    params = parameters("cuda")
    ours = CLASSES[op](params, lr=lr, capturable=True, weight_decay=0.1)
    steps(ours, 1)
    since, counted = len(emulation.launches()), hits(op)
    grads = [gradients(params, step) for step in range(1, 4)]
    with emulation.capturing(torch.Stream("cuda")):
        for given in grads:
            give(params, given)
            ours.step()
    assert counted.accelerated == 3, counted.forwarded
    assert launched(since) == ["adam_step_f32", "count_steps_f32"] * 3
    assert [s["step"].item() for s in ours.state.values()] == [4.0] * len(params)
    stock = CLASSES[op](parameters("cpu"), lr=0.01, weight_decay=0.1)
    with ptac.disabled():
        steps(stock, 4)
    agree(params, params_of(stock))


def test_steps_that_count_on_the_host_are_not_captured(
    on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own step looks, and refuses."""

    def refuse(self: Any) -> None:
        raise RuntimeError("capturable is False")

    base = torch.optim.Optimizer
    checks = [name for name in vars(base) if "graph_capture_health_check" in name]
    optimizer = torch.optim.Adam(parameters("cuda"), lr=0.01)
    steps(optimizer, 1)
    since, counted = len(emulation.launches()), hits("adam_step")
    for check in checks:
        monkeypatch.setattr(base, check, refuse)
    with (
        emulation.capturing(torch.Stream("cuda")),
        pytest.raises(RuntimeError, match="capturable is False"),
    ):
        optimizer.step()
    assert not launched(since)
    assert counted.forwarded == {"capturable": 1}


def test_groups_on_several_devices(on: Any) -> None:
    params = [parameters("cuda:0"), parameters("cuda:1"), parameters("cpu")]
    groups = [{"params": p, "lr": 0.1 * (1 + i)} for i, p in enumerate(params)]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    since, counted = len(emulation.launches()), hits("sgd_step")
    steps(optimizer, 1)
    assert counted.accelerated == 3
    devices = [launch.split()[1] for launch in emulation.launches()[since:]]
    assert devices == ["0", "1"]
    stock = torch.optim.SGD([parameters("cpu")[0]], lr=0.2, momentum=0.9)
    with ptac.disabled():
        stock.param_groups[0]["params"][0].grad = params[1][0].grad.cpu()
        stock.step()
    agree(params[1][:1], params_of(stock))


def mixed(cls: Any) -> Any:
    return cls([*parameters("cuda:0"), *parameters("cuda:1")], lr=0.01)


class Own(torch.Tensor):
    """A class of a user's."""


def subclass(cls: Any) -> Any:
    p = torch.nn.Parameter(torch.ones(3, device="cuda").as_subclass(Own))
    return cls([*parameters("cuda"), p], lr=0.01)


def foreach(cls: Any) -> Any:
    return cls(parameters("cuda"), lr=0.01, foreach=True)


REFUSED = {"device": mixed, "tensor subclass": subclass, "foreach": foreach}


@pytest.mark.parametrize("reason", REFUSED)
@pytest.mark.parametrize("op", CLASSES)
def test_stock_takes_the_others(on: Any, op: str, reason: str) -> None:
    optimizer = REFUSED[reason](CLASSES[op])
    counted, since = hits(op), len(emulation.launches())
    steps(optimizer, 1)
    assert counted.accelerated == 0
    assert counted.forwarded == {reason: 1}
    assert not launched(since)


def test_kernels_that_are_not_compiled_yet(on: Any) -> None:
    optimizer = torch.optim.SGD(parameters("cuda"), lr=0.1)
    counted = hits("sgd_step")
    with emulation.without_machine_code():
        steps(optimizer, 1)
    assert counted.forwarded == {"kernel not compiled yet": 1}


@pytest.mark.parametrize("op", CLASSES)
def test_verify_compares(op: str) -> None:
    with ptac.enable(FUSION, verify=1):
        optimizer = CLASSES[op](parameters("cuda"), lr=0.01)
        counted = hits(op)
        steps(optimizer, 3)
        assert (counted.accelerated, counted.failed) == (3, 0)
    assert "quarantined" not in ptac.report()


@pytest.mark.parametrize("op", CLASSES)
def test_a_row_that_breaks_before_it_writes(on: Any, op: str) -> None:
    """Stock does the step, whose states are as they would have been."""
    options = {"lr": 0.01, **({"momentum": 0.9} if op == "sgd_step" else {})}
    ours = CLASSES[op](parameters("cuda"), **options)
    stock = CLASSES[op](parameters("cpu"), **options)
    counted = hits(op)
    internals.inject_failure(op)
    steps(ours, 2)
    assert (counted.failed, counted.accelerated) == (1, 0)
    with ptac.disabled():
        steps(stock, 2)
    agree(params_of(ours), params_of(stock))


def test_a_launch_that_fails_behind_others(on: Any) -> None:
    """What is done cannot be taken back: an error, as stock's own launches give."""
    few = parameters("cuda")
    many = [torch.nn.Parameter(p.clone()) for p in parameters("cuda", HALF) * 40]
    optimizer = torch.optim.SGD([{"params": few}, {"params": many}], lr=0.1)
    before = [p.detach().clone() for p in (few[0], many[0])]
    emulation.load().emulated_fail(b"cuLibraryGetKernel")  # of large_sgd_step_f16
    counted, since = hits("sgd_step"), len(emulation.launches())
    with pytest.raises(RuntimeError, match=r"done in part: launch of large_sgd_step"):
        steps(optimizer, 1)
    assert (counted.accelerated, counted.failed) == (1, 1)
    assert launched(since) == ["sgd_step_f32"]
    assert not torch.equal(few[0], before[0])
    assert torch.equal(many[0], before[1])


HALF = torch.float16


def test_zero_grad(on: Any) -> None:
    """One launch, also for gradients of several dtypes; versions are counted."""
    params = [*parameters("cuda"), *parameters("cuda", torch.float64)]
    optimizer = torch.optim.SGD(params, lr=0.1)
    grads = gradients(params, 0)
    give(params, grads)
    versions = [g._version for g in grads]
    since, counted = len(emulation.launches()), hits("zero_grad")
    optimizer.zero_grad(set_to_none=False)
    assert counted.accelerated == 1, counted.forwarded
    assert launched(since) == ["zero_grad"]
    assert [g._version for g in grads] == [v + 1 for v in versions]
    assert not any(g.any() for g in grads)
    assert all(p.grad is g for p, g in zip(params, grads, strict=True))


def test_zero_grad_of_a_gradient_with_a_graph(on: Any) -> None:
    """Torch detaches it."""
    params = parameters("cuda")
    optimizer = torch.optim.SGD(params, lr=0.1)
    for p in params:
        p.grad = p * 2
    counted = hits("zero_grad")
    optimizer.zero_grad(set_to_none=False)
    assert counted.accelerated == 0
    assert all(p.grad.grad_fn is None and not p.grad.any() for p in params)


def test_zero_grad_that_sets_to_none(on: Any) -> None:
    params = parameters("cuda")
    optimizer = torch.optim.SGD(params, lr=0.1)
    give(params, gradients(params, 0))
    counted = hits("zero_grad")
    optimizer.zero_grad()
    assert counted.accelerated == 1
    assert all(p.grad is None for p in params)


def test_plain_tensors_are_known_by_their_keys() -> None:
    """What tells CUDA's plain tensors is put together, where no device need be."""
    from pai_torchacc import _host

    def keys(device: str) -> tuple[int, ...]:
        plain = torch.empty(2, device=device)
        with torch.inference_mode():
            inference = torch.empty(2, device=device)
        return tuple(torch._C._dispatch_keys(t).raw_repr() for t in (plain, inference))

    assert _host._cuda_keys(torch, *keys("cpu")) == keys("cuda")

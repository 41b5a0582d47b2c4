"""Linear layers with activations on CUDA tensors: numbers, counters, launches."""

from __future__ import annotations

import contextlib
import copy
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import contract
import emulation
import internals
import pytest
import torch
from switching import hits
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.extension import function

FUSION = "operator_fusion"
FORWARD, BACKWARD = "linear_act", "linear_act_backward"
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu tanh": lambda: nn.GELU(approximate="tanh"),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
IN_EPILOGUE = ("relu", "gelu tanh")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SEEDS = 8
PLAIN, RELU, BIAS, RELU_BIAS, GELU_BIAS, GELU_AUX_BIAS, BGRADB = (
    f"product_{number}" for number in (1, 2, 4, 6, 36, 164, 512)
)
"""Products as the emulation calls them, by cuBLASLt's numbers of epilogues."""


LEAST = 1 << 34
"""Multiply-adds from which on a layer with gradients is ours."""

ALLOWED = {
    *("cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"),
    "cuStreamIsCapturing",
}
"""What a product asks the driver itself."""


def from_work(least: int) -> None:
    """Have layers from so many multiply-adds on be ours in training."""
    function("ptac_linear_cuda_set_least", None, ctypes.c_int64)(least)


@pytest.fixture(autouse=True)
def machine_code() -> Iterator[None]:
    emulation.give_machine_code()
    emulation.stock_calls()
    from_work(0)
    yield
    from_work(LEAST)
    emulation.cublaslt().emulated_refuse(0)
    emulation.cublaslt().emulated_break(0)
    function("ptac_lt_plan_clear", None)()


@pytest.fixture
def on() -> Iterator[Any]:
    with ptac.enable(FUSION) as handle:
        yield handle
    internals.reset_quarantine()


def layer(
    k: int,
    n: int,
    activation: str = "relu",
    *,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str = "cuda",
) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(k, n, bias=bias), ACTIVATIONS[activation]())
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p) / k**0.5)
    return net.to(device, dtype)


def launched(since: int) -> list[str]:
    return [launch.split()[0] for launch in emulation.launches()[since:]]


def multiplied_by_stock() -> bool:
    return any(n in ("aten::addmm", "aten::mm") for n in emulation.stock_calls())


def step(net: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Results and gradients, on the CPU."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    y = net(x)
    y.backward(grad.to(y))
    found = {"y": y, "x": x.grad, **{n: p.grad for n, p in net.named_parameters()}}
    return {name: t.detach().cpu() for name, t in found.items() if t is not None}


def hold(
    make: Callable[[], nn.Module],
    draw: Callable[[], Tensor],
    dtype: torch.dtype,
    seeds: int = SEEDS,
) -> None:
    """Level close: beside stock on the device, and float64 of the same numbers."""
    runs: list[list[dict[str, Tensor]]] = [[], [], []]
    for seed in range(seeds):
        torch.default_generator.manual_seed(seed)
        net, x = make().to("cuda", dtype), draw()
        grad = torch.randn(*x.shape[:-1], net(x.cuda().to(dtype)).shape[-1]).to(dtype)
        x = x.to(dtype)
        on_cuda = torch.empty_strided(x.size(), x.stride(), dtype=dtype, device="cuda")
        on_cuda.copy_(x)
        runs[0].append(step(net, on_cuda, grad))
        with ptac.disabled():
            runs[1].append(step(net, on_cuda, grad))
            exact = copy.deepcopy(net).double().cpu()
            runs[2].append(step(exact, x.double(), grad.double()))
    for name in runs[0][0]:
        contract.judge(name, *([r[name] for r in run] for run in runs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_training(on: Any, activation: str, bias: bool, dtype: torch.dtype) -> None:
    forward, backward = hits(FORWARD), hits(BACKWARD)
    hold(
        lambda: layer(17, 40, activation, bias=bias),
        lambda: torch.randn(21, 17),
        dtype,
    )
    if bias or activation in IN_EPILOGUE:
        assert backward.accelerated == SEEDS
        assert forward.accelerated == 2 * SEEDS  # once for the gradient's sizes
    else:  # stock launches as often, and moves as much
        assert forward.accelerated == backward.accelerated == 0
    assert emulation.cublaslt().emulated_misuse() is None


def folded() -> Tensor:
    """Two dimensions of rows that lie at one distance."""
    return torch.randn(2, 5, 30)[..., :17]


VIEWS: dict[str, Callable[[], Tensor]] = {
    "three dimensions": lambda: torch.randn(2, 5, 17),
    "rows at a distance": lambda: torch.randn(9, 23)[:, 3:20],
    "both": folded,
    "a row": lambda: torch.randn(1, 17),
}


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("activation", ["relu", "gelu tanh"])
@pytest.mark.parametrize("view", VIEWS)
def test_views(on: Any, view: str, activation: str, n: int) -> None:
    """Rows of what is kept lie apart where n is no multiple of eight."""
    backward = hits(BACKWARD)
    seeds = contract.SEEDS
    hold(lambda: layer(17, n, activation), VIEWS[view], torch.float32, seeds)
    assert backward.accelerated == seeds


@pytest.mark.parametrize(
    ("activation", "bias", "products"),
    [
        ("relu", True, [RELU_BIAS]),
        ("relu", False, [RELU]),
        ("gelu tanh", True, [GELU_BIAS]),
    ],
)
def test_inference_is_a_launch(
    on: Any, activation: str, bias: bool, products: list[str]
) -> None:
    net, x = layer(6, 8, activation, bias=bias), torch.randn(4, 6, device="cuda")
    driver, counted = emulation.load(), hits(FORWARD)
    with torch.no_grad():
        net(x)
        since, blocks = len(emulation.launches()), driver.emulated_blocks_ever()
        emulation.stock_calls(), emulation.calls()
        y = net(x)
    assert counted.accelerated == 2
    assert launched(since) == products
    assert driver.emulated_blocks_ever() == blocks + 2  # the result, and a workspace
    assert not emulation.stock_calls()
    assert set(emulation.calls()) <= ALLOWED
    with ptac.disabled(), torch.inference_mode():
        torch.testing.assert_close(y.cpu(), net(x).cpu())


@pytest.mark.parametrize(
    ("activation", "forward", "backward"),
    [
        ("relu", [RELU_BIAS], ["bias_act_grad_wide_bf16"]),
        ("gelu tanh", [GELU_AUX_BIAS], ["bias_act_grad_wide_bf16"]),
        ("gelu", [BIAS, "bias_act_wide_bf16"], ["bias_act_grad_wide_bf16"]),
    ],
)
def test_launches_of_a_step(
    on: Any, activation: str, forward: list[str], backward: list[str]
) -> None:
    """One less than stock's for the bias, and one where the library has an epilogue."""
    net = layer(16, 32, activation, dtype=torch.bfloat16)
    x = torch.randn(8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    since = len(emulation.launches())
    net(x).sum().backward()
    assert launched(since) == [*forward, *backward, PLAIN, BGRADB]
    assert not multiplied_by_stock()


# --- what is left to stock ---


@pytest.mark.parametrize("activation", ["gelu", "silu", "tanh", "sigmoid"])
def test_activations_that_take_a_kernel_are_stocks_without_gradients(
    on: Any, activation: str
) -> None:
    counted = hits(FORWARD)
    with torch.no_grad():
        layer(6, 8, activation)(torch.randn(4, 6, device="cuda"))
    assert counted.accelerated == 0
    assert multiplied_by_stock()


def test_what_is_refused(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda")
    linear = nn.Linear(6, 8).cuda()
    counted = hits(FORWARD)
    since = len(emulation.launches())
    with torch.no_grad():
        linear(x)
        ops = ptac.ops.linear_act
        ops(x, linear.weight, linear.bias)
        ops(x[:0], linear.weight, linear.bias, "relu")
        ops(x.double(), linear.weight.double(), linear.bias.double(), "relu")
        ops(x.expand(3, 4, 6).transpose(0, 1), linear.weight, None, "relu")
        with pytest.raises(RuntimeError):
            ops(x, linear.weight.half(), None, "relu")
        with ptac.disabled():
            ops(x, linear.weight, linear.bias, "relu")
    assert counted.accelerated == 0
    assert counted.forwarded == {
        "not measured faster": 2, "empty": 1, "dtype": 2, "layout": 1,
        "disabled in this thread": 1,
    }  # fmt: skip
    assert not launched(since)


def test_small_layers_are_trained_by_stock(on: Any) -> None:
    """Whose node takes less of the host's time than ours."""
    from_work(LEAST)
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    forward, backward = hits(FORWARD), hits(BACKWARD)
    net(x).sum().backward()
    assert (forward.accelerated, backward.accelerated) == (0, 0)
    net.requires_grad_(False)(x)
    assert forward.accelerated == 1


def test_autocast_is_left_alone(on: Any) -> None:
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    counted, backward = hits(FORWARD), hits(BACKWARD)
    with torch.autocast("cuda", torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
        ptac.ops.linear_act(x, net[0].weight, net[0].bias, "relu")
    assert counted.accelerated == 0
    assert counted.forwarded == {"not measured faster": 1, "autocast": 1}
    loss = net(x).sum()
    with torch.autocast("cuda", torch.bfloat16):
        loss.backward()  # by the gradients of what forward was
    assert (counted.accelerated, backward.accelerated) == (1, 0)
    assert backward.forwarded == {"mode or transform active": 1}


@contextlib.contextmanager
def setting(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


matmul = torch.backends.cuda.matmul


@pytest.mark.parametrize(
    ("name", "value", "dtype"),
    [
        ("allow_fp16_accumulation", True, torch.float16),
        ("allow_fp16_reduced_precision_reduction", (False, False), torch.float16),
        ("allow_bf16_reduced_precision_reduction", (False, False), torch.bfloat16),
    ],
)
def test_products_of_other_sums_are_stocks(
    on: Any, name: str, value: Any, dtype: torch.dtype
) -> None:
    counted = hits(FORWARD)
    with setting(matmul, name, value), torch.no_grad():
        for each in DTYPES:
            net = layer(6, 8, dtype=each)
            ptac.ops.linear_act(
                torch.randn(4, 6, device="cuda", dtype=each),
                net[0].weight,
                net[0].bias,
                "relu",
            )
    assert counted.accelerated == 2
    assert counted.forwarded == {"lowered precision": 1}
    assert not dtype.is_complex


def test_sums_that_may_be_of_16_bits_are_of_32(on: Any) -> None:
    """Which is what such programs allow, and what others ask for."""
    counted = hits(FORWARD)
    with torch.no_grad():
        for value in (False, True):
            with setting(matmul, "allow_fp16_reduced_precision_reduction", value):
                net = layer(6, 8, dtype=torch.float16)
                net(torch.randn(4, 6, device="cuda", dtype=torch.float16))
    assert counted.accelerated == 2


def test_tf32_follows_torchs_setting_at_each_call(on: Any) -> None:
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    since = len(emulation.launches())
    y = net(x)
    with setting(matmul, "fp32_precision", "tf32"):
        net(x)
        y.sum().backward()
    net(x)
    assert launched(since) == [
        RELU_BIAS, f"{RELU_BIAS}_tf32", "bias_act_grad_wide_f32",
        f"{BGRADB}_tf32", RELU_BIAS,
    ]  # fmt: skip


def test_algorithms_that_have_to_be_deterministic_are_stocks(on: Any) -> None:
    """It may raise, or warn, by what CUBLAS_WORKSPACE_CONFIG says."""
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    counted = hits(FORWARD)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        ptac.ops.linear_act(x, net[0].weight, net[0].bias, "relu")
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.forwarded == {"mode or transform active": 1}


# --- what the library refuses, and faults ---


def test_a_refusal_of_the_library_is_kept(on: Any) -> None:
    lt, counted = emulation.cublaslt(), hits(FORWARD)
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    with ptac.disabled():
        expected = net(x).cpu()
    lt.emulated_refuse(6)
    with torch.no_grad():
        net(x)
        asked, since = lt.emulated_heuristics(), len(emulation.launches())
        y = net(x)
    assert lt.emulated_heuristics() == asked
    assert counted.forwarded["argument"] == 2
    assert not launched(since)
    assert torch.equal(y.cpu(), expected)


def test_training_by_a_library_without_epilogues(on: Any) -> None:
    for epilogue in (2, 4, 6, 36, 164, 512):
        emulation.cublaslt().emulated_refuse(epilogue)
    backward = hits(BACKWARD)
    for activation in ACTIVATIONS:
        make = layer_of(layer, 17, 40, activation)
        hold(make, lambda: torch.randn(21, 17), torch.float32)
    assert backward.accelerated == SEEDS * len(ACTIVATIONS)


def layer_of(f: Any, *args: Any) -> Any:
    return lambda: f(*args)


@pytest.mark.parametrize("trains", [False, True])
def test_a_product_that_fails(on: Any, trains: bool) -> None:
    """Stock does the call, and those that follow."""
    net, x = layer(6, 8).requires_grad_(trains), torch.randn(4, 6, device="cuda")
    with ptac.disabled():
        expected = net(x).cpu()
    counted = hits(FORWARD)
    emulation.cublaslt().emulated_break(13)
    assert torch.equal(net(x).cpu(), expected)
    emulation.cublaslt().emulated_break(0)
    assert torch.equal(net(x).cpu(), expected)
    assert (counted.accelerated, counted.failed) == (0, 1)
    assert "CUBLAS_STATUS_EXECUTION_FAILED" in ptac.report()


def test_a_gradient_that_fails(on: Any) -> None:
    net, x, grad = layer(6, 8), torch.randn(4, 6), torch.randn(4, 8)
    with ptac.disabled():
        expected = step(net, x.cuda(), grad)
    counted = hits(BACKWARD)
    internals.inject_failure(BACKWARD)
    found = step(net, x.cuda(), grad)
    assert (counted.accelerated, counted.failed) == (0, 1)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_verify_compares(activation: str) -> None:
    with ptac.enable(FUSION, verify=1):
        forward, backward = hits(FORWARD), hits(BACKWARD)
        step(layer(6, 9, activation), torch.randn(4, 6).cuda(), torch.randn(4, 9))
        assert (forward.accelerated, backward.accelerated) == (1, 1)
    assert "quarantined" not in ptac.report()


def test_verify_finds_wrong_numbers() -> None:
    with ptac.enable(FUSION, verify=1):
        net, x = layer(6, 8, "gelu"), torch.randn(4, 6, device="cuda")
        with ptac.disabled():
            expected = net(x).cpu()
        emulation.load().emulated_skip_launch()  # of the activation
        assert torch.equal(net(x).cpu(), expected)
        assert "shadow check found" in ptac.report()
    internals.reset_quarantine()


# --- streams, devices, captures ---


def test_launches_follow_stream_and_device(on: Any) -> None:
    nets = [layer(6, 8, device=f"cuda:{i}") for i in range(2)]
    x = [torch.randn(4, 6, device=f"cuda:{i}") for i in range(2)]
    stream, since = torch.Stream("cuda:1"), len(emulation.launches())
    with stream:
        y = nets[1](x[1])
    nets[0](x[0]).sum().backward()
    y.sum().backward()
    places = [launch.split()[1:] for launch in emulation.launches()[since:]]
    number = str(stream.stream_id)
    assert places == [["1", number], *[["0", "0"]] * 3, *[["1", number]] * 2]


def test_tensors_of_two_devices_are_stocks(on: Any) -> None:
    net = layer(6, 8)
    counted = hits(FORWARD)
    call = ptac.ops.linear_act
    call(torch.randn(4, 6, device="cuda:1"), net[0].weight, net[0].bias, "relu")
    call(torch.randn(4, 6, device="cuda"), net[0].weight.cpu(), None, "relu")
    assert counted.forwarded == {"device": 2}


def test_capture(on: Any) -> None:
    """Products that have not been planned are stock's there; others are captured."""
    net, x = layer(6, 8, "gelu"), torch.randn(4, 6, device="cuda")
    stream, counted, grad = torch.Stream("cuda"), hits(FORWARD), torch.randn(4, 8)
    grad = grad.cuda()

    def captured() -> list[str]:
        since = len(emulation.launches())
        with emulation.capturing(stream):
            net(x).backward(grad)
        return launched(since)

    function("ptac_lt_plan_clear", None)()
    assert captured() == []
    assert counted.forwarded == {"kernel not compiled yet": 1}
    net(x).backward(grad)
    counted = hits(FORWARD), hits(BACKWARD)
    assert captured() == [BIAS, "bias_act_wide_f32", "bias_act_grad_wide_f32", BGRADB]
    assert [c.accelerated for c in counted] == [1, 1]


def test_checks_are_left_out_of_captures() -> None:
    with ptac.enable(FUSION, verify=1):
        net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
        net(x)
        counted = hits(FORWARD)
        with emulation.capturing(torch.Stream("cuda")):
            net(x)
        assert counted.accelerated == 1


# --- autograd ---


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_double_backward(on: Any, activation: str) -> None:
    """By torch's own operators, from what the node has kept."""

    def second(net: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        first = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), x)[0].cpu()

    net, x = layer(6, 9, activation), torch.randn(4, 6, device="cuda")
    counted, back = hits(FORWARD), hits(BACKWARD)
    found = second(net, x)
    assert counted.accelerated == 1
    assert back.forwarded.keys() == {"gradient not supported"}
    with ptac.disabled():
        expected = second(net, x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_gradients_of_some(
    on: Any, activation: str, wanted: tuple[int, int, int]
) -> None:
    net, x = layer(6, 9, activation), torch.randn(4, 6, device="cuda")
    tensors = [x, *net[0].parameters()]
    for t, wants in zip(tensors, wanted, strict=True):
        t.requires_grad_(bool(wants))
    chosen = [t for t in tensors if t.requires_grad]
    counted = hits(BACKWARD)
    grad = torch.randn(9, 4).t().cuda()  # which is not contiguous
    found = torch.autograd.grad(net(x), chosen, grad)
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = torch.autograd.grad(net(x), chosen, grad)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())


def test_what_was_kept_may_not_change(on: Any) -> None:
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")

    def error() -> str:
        y = net(x)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace") as raised:
            y.sum().backward()
        return str(raised.value)

    counted = hits(FORWARD)
    found = error()
    assert counted.accelerated == 1
    with ptac.disabled():
        assert error() == found


def test_saved_tensors_may_be_kept_elsewhere(on: Any) -> None:
    """Through hooks nothing of ours is saved."""
    net, x = layer(6, 9, "gelu"), torch.randn(4, 6, device="cuda")
    counted = hits(FORWARD)
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda t: t.cpu(), lambda t: t.cuda()):
        net(x).sum().backward()
    assert counted.forwarded["hooks"] == 1
    assert counted.accelerated == 0


def test_numbers_that_are_none(on: Any) -> None:
    """A gradient passes at NaN, as through stock's ReLU."""
    net, x = layer(6, 8), torch.randn(4, 6)
    x[1, 2], x[3, 3] = torch.nan, torch.inf
    counted = hits(BACKWARD)
    found = step(net, x.cuda(), torch.ones(4, 8))
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = step(net, x.cuda(), torch.ones(4, 8))
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, equal_nan=True)


def test_switching_and_copies(on: Any) -> None:
    """A graph that was made before a switch goes off is walked through after it."""
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    double = copy.deepcopy(net)
    losses = [n(x).square().sum() for n in (net, double)]
    ptac.disable(FUSION)
    losses[1].backward()
    ptac.enable(FUSION)
    counted = hits(BACKWARD)
    losses[0].backward()
    assert counted.accelerated == 1
    for a, b in zip(net.parameters(), double.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad.cpu())

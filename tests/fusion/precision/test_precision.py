"""The room of reduced precision: operators that multiply in bfloat16 at level fast."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contract
import internals
import pytest
import switching
import torch
import torch.nn.functional as F
from lowering import OPS, needs_bf16, rounding
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C, _config, calibration
from pai_torchacc.calibration import in_use
from pai_torchacc.fusion import precision


def flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def test_hardware_is_what_the_system_says() -> None:
    here = flags()
    expected = ["avx512"] if "avx512_bf16" in here else []
    if expected and {"amx_bf16", "amx_tile"} <= here:
        expected.append("amx")
    assert _C.bf16_hardware() == ", ".join(expected)


def test_rows_need_the_hardware() -> None:
    program = """
from pai_torchacc import _host
_C = _host.load()
print(repr(_C.bf16_hardware()))
for op, row in _C.bf16_rows():
    try:
        _C.pin(op, row)
    except ValueError as error:
        print(error)
"""
    out = switching.python(program, PTAC_CPU_ISA="avx2").splitlines()
    assert out[0] == "''"
    rows = _C.bf16_rows()
    assert out[1:] == [f"{op} has no row {row} on this CPU" for op, row in rows]


def layer(lead: tuple[int, ...], k: int, n: int, activation: Any) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        net = nn.Sequential(nn.Linear(k, n), *activation).to(dtype)
        x = contract.draw(*lead, k, dtype=dtype).requires_grad_()
        y = net(x)
        y.backward(contract.draw(*y.shape, dtype=dtype).to(y.dtype))
        grads = {name: p.grad for name, p in net.named_parameters()}
        return {"y": y.float() if dtype == torch.float32 else y, "x": x.grad, **grads}

    return case


@needs_bf16
@pytest.mark.parametrize("activation", [(), (nn.ReLU(),), (nn.GELU(),), (nn.Tanh(),)])
@pytest.mark.parametrize("lead", [(64,), (9,), (3, 33), (2, 2, 16)], ids=str)
def test_linear(lead: tuple[int, ...], activation: Any) -> None:
    for k, n in ((300, 96), (17, 130)):
        with rounding("linear_act", "linear_act_backward") as hits:
            contract.hold(layer(lead, k, n, activation), bf16=True)
            assert hits["linear_act"].accelerated
            assert hits["linear_act_backward"].accelerated


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((4, 16, 14, 15), (24, 16, 3, 3), {"padding": 1}),
    "3x3 by 2": ((4, 16, 15, 14), (24, 16, 3, 3), {"padding": 1, "stride": 2}),
    "1x1": ((4, 16, 14, 14), (32, 16, 1, 1), {}),
    "1x1 by 2": ((4, 16, 14, 14), (32, 16, 1, 1), {"stride": 2}),
    "7x7": ((2, 3, 30, 31), (32, 3, 7, 7), {"padding": 3, "stride": 2}),
    "3x5": ((2, 3, 20, 31), (32, 3, 3, 5), {"padding": (0, 2)}),
    "one channel": ((6, 1, 14, 14), (8, 1, 5, 5), {}),
    "one output": ((6, 8, 14, 14), (1, 8, 3, 3), {}),
}


@needs_bf16
@pytest.mark.parametrize("last", ["neither", "x", "weight", "both"])
@pytest.mark.parametrize("shape", SHAPES)
def test_conv(shape: str, last: str) -> None:
    sizes, weights, options = SHAPES[shape]

    def laid_out(t: Tensor, name: str) -> Tensor:
        if last in (name, "both"):
            t = t.to(memory_format=torch.channels_last)
        return t.requires_grad_()

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = laid_out(contract.draw(*sizes, dtype=dtype), "x")
        w = laid_out(contract.draw(*weights, dtype=dtype), "weight")
        b = contract.draw(weights[0], dtype=dtype).requires_grad_()
        y = F.conv2d(x, w, b, **options)
        grad = contract.draw(*y.shape, dtype=dtype).to(y.dtype)
        gx, gw, gb = torch.autograd.grad(y, (x, w, b), grad)
        return {"y": y.to(dtype), "x": gx, "weight": gw, "bias": gb}

    with rounding("conv2d", "conv2d_backward") as hits:
        contract.hold(case, bf16=True)
        n = hits["conv2d"].accelerated
        if shape == "one channel" and last != "neither":
            # Of a gradient of one channel both layouts are the same memory.
            assert set(hits["conv2d"].forwarded) == {"layout", "dtype"}  # of float64
            return
        assert n >= 1
        assert hits["conv2d_backward"].accelerated == 2 * n  # data; weight and bias


@needs_bf16
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_chain(layout: torch.memory_format) -> None:
    """BatchNorm and ReLU behind a convolution are added in float32."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 24, 3), nn.BatchNorm2d(24), nn.ReLU()).eval()
    nn.init.normal_(net[1].running_mean)
    net.to(memory_format=layout)
    x = torch.randn(4, 8, 12, 12).to(memory_format=layout)
    with torch.no_grad():
        stock, exact = net(x), copy.deepcopy(net).double()(x.double())
        with torch.autocast("cpu", torch.bfloat16):
            lowered = net(x)
        with rounding("conv2d") as hits:
            ours = net(x)
            assert hits["conv2d"].accelerated == 1
    contract.judge("y", [ours], [stock], [exact], [lowered])


def heads(n: int, d: int, way: str, dtype: torch.dtype) -> Tensor:
    if way == "packed":
        qkv = contract.draw(2, n, 3 * 4 * d, dtype=dtype)
        return qkv[..., 4 * d : 8 * d].view(2, n, 4, d).transpose(1, 2)
    if way == "transposed":
        return contract.draw(2, n, 4, d, dtype=dtype).transpose(1, 2)
    return contract.draw(2, 4, n, d, dtype=dtype)


@needs_bf16
@pytest.mark.parametrize("way", ["contiguous", "transposed", "packed"])
@pytest.mark.parametrize("kind", ["full", "causal", "mask", "bool mask", "scale"])
def test_attention(kind: str, way: str) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        options: dict[str, Any] = {
            "full": dict,
            "causal": lambda: {"is_causal": True},
            "mask": lambda: {"attn_mask": contract.draw(50, 70, dtype=dtype)},
            "bool mask": lambda: {"attn_mask": torch.randn(50, 70) > -1},
            "scale": lambda: {"scale": 0.5},
        }[kind]()
        q, k, v = (heads(n, 32, way, dtype).requires_grad_() for n in (50, 70, 70))
        y = F.scaled_dot_product_attention(q, k, v, **options)
        grad = contract.draw(*y.shape, dtype=dtype).to(y.dtype)
        gq, gk, gv = torch.autograd.grad(y, (q, k, v), grad)
        return {"y": y.to(dtype), "q": gq, "k": gk, "v": gv}

    with rounding("attention", "attention_backward") as hits:
        contract.hold(case, bf16=True)
        assert hits["attention"].accelerated == 1
        assert hits["attention_backward"].accelerated == 1


@needs_bf16
def test_attention_under_a_sum() -> None:
    """Whose gradient is one number with strides of zero."""

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        q, k, v = (heads(50, 32, "packed", dtype).requires_grad_() for _ in "qkv")
        y = F.scaled_dot_product_attention(q, k, v)
        return {"v": torch.autograd.grad(y.sum(), (q, k, v))[2]}

    with rounding("attention", "attention_backward") as hits:
        contract.hold(case, bf16=True)
        assert hits["attention_backward"].accelerated == 1


class Net(nn.Module):
    """Something of everything."""

    def __init__(self, channels: int = 3, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 20)

    def forward(self, x: Tensor) -> Tensor:
        tokens = F.relu(self.conv(x)).flatten(2).transpose(1, 2).contiguous()
        parts = self.qkv(tokens).split(self.width, 2)
        q, k, v = (p.unflatten(2, (-1, 16)).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2).mean(1))


def images() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(16, 3, 8, 8)


def train(n: int = 20, seed: int = 0) -> tuple[list[float], Net]:
    torch.manual_seed(seed)
    net, x, y = Net(), torch.randn(16, 3, 8, 8), torch.randint(0, 10, (16,))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    losses = []
    for _ in range(n):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in net.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(p.dtype == torch.float32 for p in net.parameters())
    states = optimizer.state.values()
    assert all(s["exp_avg"].dtype == torch.float32 for s in states)
    return losses, net


@needs_bf16
def test_training() -> None:
    stock, _ = train()
    with rounding() as hits:
        ours, net = train()
        assert {op: h.accelerated for op, h in hits.items()} == {
            "conv2d": 20,
            "conv2d_backward": 20,  # of the weight alone
            "linear_act": 40,
            "linear_act_backward": 40,
            "attention": 20,
            "attention_backward": 20,
            "mm": 0,  # of other callers than layers
            "addmm": 0,
        }
        again, net_again = train()
    assert ours == again
    contract.exactly(net.state_dict(), net_again.state_dict())
    assert ours != stock
    torch.testing.assert_close(ours, stock, rtol=0.02, atol=0.02)
    after, _ = train()
    assert after == stock


@needs_bf16
def test_leaves_the_dispatcher() -> None:
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"

    def registered() -> bool:
        return "pai_torchacc" in torch._C._dispatch_dump(name)

    with ptac.enable("operator_fusion", numerics="exact"):
        assert not registered()  # no row of it is exact
        with rounding():
            assert registered()
        assert not registered()
    assert not registered()


@needs_bf16
def test_autocast_goes_first() -> None:
    net, x = Net(), images()

    def run() -> Tensor:
        return net(x).detach()

    for is_on in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            stock = run()
            with rounding() as hits:
                contract.exactly(run(), stock)
                assert not any(h.accelerated for h in hits.values())
                reasons = {op: set(h.forwarded) for op, h in hits.items()}
        own = {"dtype"} if is_on else {"autocast"}
        assert reasons["conv2d"] == reasons["attention"] == own
        # Sizes and dtypes of a product are looked at before modes are.
        assert reasons["linear_act"] <= {"mode or transform active", "autocast", *own}
    with rounding() as hits:
        before = run()
        with torch.autocast("cpu", torch.bfloat16):
            pass
        contract.exactly(run(), before)
        assert hits["conv2d"].accelerated == 2


@needs_bf16
def test_gradients_inside_autocast_are_stocks() -> None:
    net, x = Net(), images()
    with rounding() as hits:
        y = net(x).sum()
        with torch.autocast("cpu", torch.bfloat16):
            y.backward()
        for op in ("conv2d_backward", "linear_act_backward", "attention_backward"):
            assert hits[op].accelerated == 0
            assert "autocast" in hits[op].forwarded or op == "linear_act_backward"


@needs_bf16
def test_settings_of_the_user() -> None:
    net, x = Net(), images()
    with rounding() as hits, torch.backends.mkldnn.flags(enabled=False):
        net(x)
        assert not any(h.accelerated for h in hits.values())
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with rounding("linear_act") as hits:
            net(x)
            assert hits["linear_act"].forwarded == {"lowered precision": 2}
    finally:
        torch.set_float32_matmul_precision(before)


@needs_bf16
def test_hooks_and_second_derivatives() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 16))
    conv, x = nn.Conv2d(1, 8, 3), torch.randn(16, 24, requires_grad=True)
    image = torch.randn(8, 1, 9, 9, requires_grad=True)
    seen: list[torch.dtype] = []
    net[0].register_forward_hook(lambda m, i, o: seen.append(o.dtype))
    net[2].weight.register_hook(lambda g: seen.append(g.dtype))

    def second() -> list[Tensor]:
        y = net(x).pow(2).sum() + conv(image).pow(3).sum()
        first = torch.autograd.grad(y, (x, image), create_graph=True)
        loss = sum(g.pow(2).sum() for g in first)
        wanted = (*net.parameters(), conv.weight)
        return [g for g in torch.autograd.grad(loss, wanted, allow_unused=True)]

    stock = second()
    with rounding() as hits:
        ours = second()
        assert hits["linear_act"].accelerated == 2
        assert hits["conv2d"].accelerated >= 1
    for o, s in zip(ours, stock, strict=True):
        assert (o is None) == (s is None)
        assert o is None or (o - s).norm() <= 0.03 * s.norm()
    assert set(seen) == {torch.float32}


@needs_bf16
@pytest.mark.parametrize("what", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite(what: float) -> None:
    def calls() -> list[Tensor]:
        torch.manual_seed(0)
        x, image = torch.randn(32, 40), torch.randn(2, 8, 9, 9)
        x[3, 5] = image[1, 2, 4, 4] = what
        linear = nn.Linear(40, 24)
        return [linear(x).detach(), F.conv2d(image, torch.randn(16, 8, 3, 3))]

    stock = calls()
    with rounding() as hits:
        ours = calls()
        assert hits["linear_act"].accelerated == hits["conv2d"].accelerated == 1
    for o, s in zip(ours, stock, strict=True):
        assert torch.equal(o.isnan(), s.isnan())
        assert torch.equal(o.isinf(), s.isinf())


@needs_bf16
@pytest.mark.parametrize("scale", [1e-18, 1e18, 3e37])
def test_range_is_that_of_float32(scale: float) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(32, 48, bias=False), torch.rand(16, 32) * scale
    linear.weight.data /= 16
    stock = linear(x)
    with rounding("linear_act") as hits:
        ours = linear(x)
        assert hits["linear_act"].accelerated == 1
    assert ours.isfinite().all()
    assert (ours / scale - stock / scale).norm() <= 0.01 * (stock / scale).norm()


@needs_bf16
def test_subnormal_numbers_and_ties_are_rounded_as_torch_does() -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (64, 96), dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)
    x[0] = torch.linspace(0, 1e-38, 96)
    x[1] = (torch.arange(96, dtype=torch.int32) * 0x8000 + 0x3F800000).view(
        torch.float32
    )
    x = torch.where(x.abs() < 1e30, x, 1.0)
    one = nn.Linear(96, 96, bias=False)
    one.weight.data = torch.eye(96)
    expected = x.bfloat16().float()
    with rounding("linear_act"):
        ours = one(x)
    normal = expected.abs() >= torch.finfo(torch.float32).tiny
    assert torch.equal(ours[normal], expected[normal])


@needs_bf16
def test_threads() -> None:
    net, x = Net(), images()
    before = torch.get_num_threads()
    with rounding():
        expected = net(x)
        found: list[Tensor] = []
        workers = [
            threading.Thread(target=lambda: found.append(net(x))) for _ in range(4)
        ]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        assert len(found) == 4
        try:
            for n in (1, 2, 3):
                torch.set_num_threads(n)
                found += [net(x), net(x)]
                contract.exactly(found[-1].detach(), found[-2].detach())
        finally:
            torch.set_num_threads(before)
    for y in found:
        torch.testing.assert_close(y, expected, rtol=0.02, atol=0.01)


@needs_bf16
def test_shadow_checks_agree() -> None:
    with rounding(verify=1) as hits:
        troubles = {op: _C.counters(op)[5] for op in hits}  # of tests before this one
        train(3)
        x = torch.randn(64, 64)
        torch.addmm(torch.randn(64), x, torch.mm(x, x))
        for op, h in hits.items():
            assert h.accelerated and not h.failed, op
            assert _C.counters(op)[5] == troubles[op], op


@needs_bf16
def test_shadow_checks_find_wrong_numbers() -> None:
    """The room's tolerance is wider, and still one."""
    net = nn.Linear(64, 64)
    x = torch.randn(64, 64)
    with rounding("linear_act", verify=1) as hits, torch.no_grad():
        net(x)
        assert hits["linear_act"].accelerated == 1
        y = F.linear(x, net.weight, net.bias)
        assert _C.shadow_settle("linear_act", (y + y.abs().max() / 40,), (y,), 0, 0)
        assert not _C.shadow_settle("linear_act", (y + y.abs().max() / 8,), (y,), 0, 0)
        assert "shadow check" in _C.counters("linear_act")[5]
    internals.reset_quarantine()


@needs_bf16
def test_verify_holds_it_to_stocks_bfloat16() -> None:
    net, x = Net(), images()
    with rounding() as hits:
        found = ptac.verify(net, x)
        assert hits["conv2d"].accelerated >= 1
    assert found, found
    assert "contract 'fast': kept" in str(found)
    with switching.pins(OPS, "bf16"), ptac.enable("operator_fusion"):
        assert not ptac.verify(net, x)  # level close allows no such error


@needs_bf16
def test_verify_finds_more_than_rounding() -> None:
    linear = nn.Linear(64, 64)

    def wrong(x: Tensor) -> Tensor:
        hits = switching.hits("linear_act")
        y = linear(x)
        return y * 1.02 if hits.accelerated else y

    with rounding("linear_act"):
        assert not ptac.verify(wrong, torch.randn(64, 64))


def test_no_shipped_table_claims_it() -> None:
    folder = Path(calibration.__file__).parent
    for path in folder.glob("generic-*.csv"):
        rows = {(m.op, m.row) for m in calibration.read(path) if m.ratio >= 1.05}
        assert rows.isdisjoint(_C.bf16_rows()), path


def table_of(tmp_path: Path, ratio: float, *, lowered: bool = True) -> Path:
    rows = _C.bf16_rows() if lowered else [("linear_act", "onednn")]
    return switching.table_of(tmp_path, rows, ratio)


@needs_bf16
def test_the_table_decides(tmp_path: Path) -> None:
    net, x = Net(64, 128), torch.randn(16, 64, 8, 8)
    for ratio, numerics, runs in ((2, "fast", 1), (0.5, "fast", 0), (2, "close", 0)):
        hits = [switching.hits(op) for op in ("conv2d", "attention", "linear_act")]
        path = table_of(tmp_path, ratio)
        with ptac.enable("operator_fusion", numerics=numerics, calibration=path):
            ptac.report(reset=True)
            net(x)
            level = ptac.report("json")
        assert [bool(h.accelerated) for h in hits] == [bool(runs)] * 3
        assert ('"level": "fast"' in level) == (numerics == "fast")


@needs_bf16
def test_thin_products_are_not_rounded(tmp_path: Path) -> None:
    """Whatever the table says of products with as many multiplications."""
    net, x = Net(), images()
    hits = [switching.hits(op) for op in ("conv2d", "linear_act")]
    with ptac.enable(
        "operator_fusion", numerics="fast", calibration=table_of(tmp_path, 2)
    ):
        net(x)
    assert [h.accelerated for h in hits] == [0, 0]
    assert all(h.forwarded for h in hits)


def test_entrance_for_other_switches(tmp_path: Path) -> None:
    config = precision.asked(_config.Config(features=("memory_pool",)))
    assert config.numerics == "fast"
    assert set(config.features) == {"memory_pool", "operator_fusion"}
    found: dict[str, Callable[[], Any]] = {
        "no measurement": lambda: table_of(tmp_path, 2, lowered=False),
        "nowhere faster": lambda: table_of(tmp_path, 0.5),
        "": lambda: table_of(tmp_path, 2),
    }
    for text, table in found.items():
        why = precision.reason(_C, in_use.find(_C, str(table()))[0])
        if not _C.bf16_hardware():
            assert why is not None
        elif text:
            assert why is not None
            assert text in why
        else:
            assert why is None


def is_registered(suffix: str = "") -> bool:
    name = f"aten::_scaled_dot_product_flash_attention_for_cpu{suffix}"
    return "pai_torchacc" in torch._C._dispatch_dump(name)


def both_registered() -> list[bool]:
    return [is_registered(), is_registered("_backward")]


@needs_bf16
def test_leaves_the_dispatcher_where_the_table_claims_nothing(tmp_path: Path) -> None:
    for ratio in (0.5, 2):
        path = table_of(tmp_path, ratio)
        with ptac.enable("operator_fusion", numerics="fast", calibration=path):
            assert both_registered() == [ratio > 1] * 2
            _C.pin("attention", "bf16")
            try:
                assert all(both_registered())
                with ptac.enable("operator_fusion", numerics="fast", calibration=path):
                    assert all(both_registered())
            finally:
                _C.pin("attention", None)
        assert not any(both_registered())
    _C.pin("attention", "bf16")  # off: there is nothing to enter
    try:
        assert not any(both_registered())
    finally:
        _C.pin("attention", None)

"""int8 calls that are not what layers make: empty, huge, misaligned, with gaps."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import native
import pytest
import switching
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

HUGE = (2**31, 2**32, 2**62, 2**63 - 1)


@pytest.fixture(autouse=True)
def switched_on() -> Iterator[None]:
    """The kernels are on, gradients are off."""
    with ptac.enable_model_quantization() as handle, torch.no_grad():
        assert handle, handle.reason
        yield


def quantized(layer: nn.Module) -> nn.Module:
    model = nn.Sequential(layer).eval()
    ptac.quantize_model(model, method="int8")
    return model


# Empty images.


@pytest.mark.parametrize("size", [(1, 16, 0, 5), (1, 16, 5, 0)])
def test_images_without_a_pixel_are_stock_s(size: tuple[int, ...]) -> None:
    stock = nn.Conv2d(16, 64, 3, padding=2)
    model = quantized(nn.Conv2d(16, 64, 3, padding=2))
    message = "Only zero batch or zero channel inputs are supported"
    with pytest.raises(RuntimeError, match=message):
        stock(torch.zeros(size))
    hits = switching.hits("int8_conv2d")
    with pytest.raises(RuntimeError, match=message):
        model(torch.zeros(size))
    assert hits.forwarded == {"empty": 1}, hits


def test_an_empty_batch() -> None:
    model = quantized(nn.Conv2d(16, 64, 3, padding=2))
    assert model(torch.zeros(0, 16, 5, 5)).shape == (0, 64, 7, 7)


# Numbers of an exported program or a checkpoint.

GEOMETRY = (16, 3, 3, 3, 1, 1, 2, 2, 1, 1, 1)


def conv_arguments() -> tuple[Tensor, Tensor, Tensor]:
    weight = torch.randint(-127, 128, (16, 3, 3, 3), dtype=torch.int8)
    return torch.randn(2, 3, 9, 9), _C.int8_pack(weight, 1), torch.rand(16)


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("at", range(len(GEOMETRY)))
def test_a_geometry_that_overflows(at: int, huge: int) -> None:
    geometry = (*GEOMETRY[:at], huge, *GEOMETRY[at + 1 :])
    x, packed, scale = conv_arguments()
    assert _C.int8_conv2d(x, packed, scale, None, GEOMETRY) is not None
    for entry in (_C.int8_conv2d, _C.int8_conv2d_kernel):
        hits = switching.hits("int8_conv2d")
        assert entry(x, packed, scale, None, geometry) is None
        assert hits.accelerated == 0, hits


WRAPPED = {
    # products that are small numbers again in 64 bits
    "channels": ((1, 0, 8, 8), (16, 2**62, 2, 2, 1, 1, 1, 1, 1, 1, 4)),
    "window": ((1, 1, 1, 1), (16, 1, 2**32, 2**32, 1, 1, 2**31, 2**31, 1, 1, 1)),
    "steps": (
        (1, 1, 1, 1),
        (16, 1, 2**32, 2**32, 2**40, 2**40, 2**31, 2**31, 1, 1, 1),
    ),
    "margin": ((1, 1, 1, 1), (16, 1, 1, 1, 1, 1, 2**30, 2**30, 1, 1, 1)),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_program_whose_sizes_wrap(kind: str) -> None:
    size, geometry = WRAPPED[kind]
    packed, scale = torch.zeros(16 * 4 + 64, dtype=torch.int8), torch.ones(16)
    for n_bytes in (64, 128):
        args = torch.zeros(size), packed[:n_bytes], scale, None
        assert _C.int8_conv2d(*args, geometry) is None
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            torch.ops.pai_torchacc.int8_conv2d(*args, list(geometry))


def test_a_margin_that_nothing_can_hold() -> None:
    packed = _C.int8_pack(torch.ones(16, 1, 1, 1, dtype=torch.int8), 1)
    geometry = (16, 1, 1, 1, 2**30, 2**30, 2**30, 2**30, 1, 1, 1)
    args = torch.zeros(1, 1, 1, 1), packed, torch.ones(16), None
    hits = switching.hits("int8_conv2d")
    assert _C.int8_conv2d_kernel(*args, geometry) is None
    assert hits.forwarded == {"shape": 1}, hits


@pytest.mark.parametrize("huge", HUGE)
def test_a_linear_layer_that_overflows(huge: int) -> None:
    packed = _C.int8_pack(torch.ones(16, 4, dtype=torch.int8), 1)
    args = torch.ones(2, 4), packed, torch.ones(16), None
    assert _C.int8_linear(*args, 16, 4, 0) is not None
    assert _C.int8_linear(*args, huge, 4, 0) is None
    assert _C.int8_linear(*args, 16, huge, 0) is None
    assert _C.int8_linear(*args, huge, huge, 0) is None


@pytest.mark.parametrize(
    "sizes",
    [
        (16, 2**60),
        (2**32, 2**32),
        (16, 2**32, 2**32),
        (16, 2**31, 2**31, 2),
        (2**63 - 1, 1),
        (1, 2**63 - 1),
        (1, 1, 2**63 - 1),
        (0, 4),
        (16, 0, 2**62),
    ],
)
def test_sizes_that_overflow_are_no_weight(sizes: tuple[int, ...]) -> None:
    packed = torch.zeros(64, dtype=torch.int8)
    with pytest.raises(ValueError, match="larger than tensors"):
        _C.int8_unpack(packed, sizes, 1)
    with pytest.raises(ValueError, match="larger than tensors"):
        torch.ops.pai_torchacc.int8_dequantize(packed, torch.ones(16), list(sizes), 1)


@pytest.mark.parametrize("groups", [3, 32, 2**62])
def test_groups_that_do_not_divide(groups: int) -> None:
    weight = torch.zeros(16, 4, dtype=torch.int8)
    with pytest.raises(ValueError, match="groups do not divide"):
        _C.int8_pack(weight, groups)
    with pytest.raises(ValueError, match="groups do not divide"):
        _C.int8_unpack(_C.int8_pack(weight, 1), (16, 4), groups)


def test_weights_without_columns() -> None:
    none = torch.empty(2**40, 0, dtype=torch.int8)
    with pytest.raises(ValueError, match="empty"):
        _C.int8_pack(none, 1)


# Layouts.

GAPS = {
    "inner": lambda x: x[:, :, 1:-1, 1:-1],
    "channels": lambda x: x[:, 2:10],
    "columns": lambda x: x[..., ::2],
    "images": lambda x: x[::2],
    "expanded": lambda x: x[:1].expand(3, -1, -1, -1),
    "none": lambda x: x,
}
FORMATS = (torch.contiguous_format, torch.channels_last)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("kind", GAPS)
def test_results_lie_as_stock_s(
    kind: str, memory_format: torch.memory_format, window: int
) -> None:
    x = GAPS[kind](torch.randn(3, 16, 12, 12).to(memory_format=memory_format))
    layer = nn.Conv2d(x.shape[1], 64, window, padding=window // 2)
    expected = layer(x)
    hits = switching.hits("int8_conv2d")
    found = quantized(layer)(x)
    assert hits.accelerated == 1, hits
    assert found.stride() == expected.stride()
    noise = (found - expected).square().sum() / expected.square().sum()
    assert noise < 1e-3  # 30 dB, of weights and activations in int8


# Memory.


def shifted(tensor: Tensor, by: int) -> Tensor:
    """The same numbers, so many bytes from where memory begins."""
    n = tensor.numel() * tensor.element_size()
    memory = bytearray(n + by + 64)
    begin = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    at = -begin % 64 + by
    moved = torch.frombuffer(
        memory, dtype=tensor.dtype, offset=at, count=tensor.numel()
    ).view(tensor.shape)
    moved.copy_(tensor)
    assert moved.data_ptr() % 64 == by % 64
    return moved


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("op", ["int8_linear", "int8_conv2d"])
def test_inputs_that_are_not_aligned(op: str, at: int) -> None:
    entry = getattr(_C, f"{op}_kernel")
    if op == "int8_linear":
        packed = _C.int8_pack(torch.ones(16, 4, dtype=torch.int8), 1)
        tensors, rest = [torch.randn(2, 4), packed], (16, 4, 0)
    else:
        x, packed, _ = conv_arguments()
        tensors, rest = [x, packed], (GEOMETRY,)
    tensors += [torch.rand(16), torch.rand(16)]
    expected = entry(*tensors, *rest)
    for by in (1, 2, 4, 12):
        moved = [shifted(t, by) if i == at else t for i, t in enumerate(tensors)]
        hits = switching.hits(op)
        found = entry(*moved, *rest)
        if by % 4:
            assert found is None
            assert hits.forwarded == {"layout": 1}, hits
        else:
            assert torch.equal(found, expected)


def test_weights_that_are_not_aligned_are_dequantized() -> None:
    weight = torch.randint(-127, 128, (16, 4), dtype=torch.int8)
    packed, scale, x = _C.int8_pack(weight, 1), torch.rand(16), torch.randn(3, 4)
    op = torch.ops.pai_torchacc.int8_linear
    found = op(x, shifted(packed, 1), scale, None, 16, 4)
    assert torch.equal(found, x @ (weight.float() * scale[:, None]).t())


def test_indices_that_are_not_aligned() -> None:
    table, scale = torch.ones(4, 3, dtype=torch.int8), torch.rand(4)
    indices = torch.tensor([1, 3])
    assert _C.int8_embedding(shifted(indices, 8), shifted(table, 1), scale) is not None
    assert _C.int8_embedding(shifted(indices, 4), table, scale) is None
    assert _C.int8_embedding(indices, table, shifted(scale, 2)) is None


# Other threads.


def test_indices_that_others_write_to() -> None:
    """Each index is checked where it is used: a wild one would be a wild address."""
    table, scale = torch.ones(64, 64, dtype=torch.int8), torch.ones(64)
    indices = torch.zeros(20000, dtype=torch.int64)
    wild, stop = 2**40, threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            indices[15000:].fill_(wild)
            indices[15000:].fill_(0)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(300):
            y = _C.int8_embedding(indices, table, scale)
            assert y is None or bool((y == 1).all())
    finally:
        stop.set()
        thread.join()


def test_no_size_is_read_while_others_run() -> None:
    """Without the interpreter's lock, others may resize what was given to us."""
    folder = native.CSRC / "bind" / "python"
    sources = [*folder.rglob("int8*_chain.c"), *(folder / "quantized").glob("*.c")]
    unlocked = r"PTAC_UNLOCKED\((.*?);"
    found = [u for s in sources for u in re.findall(unlocked, s.read_text(), re.S)]
    assert len(found) == 4
    for text in found:
        assert not re.search(r"sizes|strides|n_dims|n_elements", text), text


PLAIN = """
import torch
from torch import nn
import pai_torchacc as ptac

ptac.enable_model_quantization()
for layer, x in (
    (nn.Linear(64, 64), torch.randn(4, 64)),
    (nn.Conv2d(16, 16, 3), torch.randn(1, 16, 5, 5)),
):
    model = nn.Sequential(layer).eval()
    ptac.quantize_model(model, method="int8")
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(model(x), expected)
    model(x.requires_grad_()).sum().backward()
    assert x.grad is not None
"""


def test_gradients_are_asked_for_where_nothing_is_fused() -> None:
    """A process that has only quantization on knows ``requires_grad`` as well."""
    switching.python(PLAIN)

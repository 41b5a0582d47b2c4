"""Layers and blocks on CUDA where tables say whether they are ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import cuda_tables
import linear_layers
import pytest
import torch
from linear_layers import (
    BACKWARD,
    FORWARD,
    LEAST,
    LEAST_OF_BLOCKS,
    MLP,
    MLP_BACKWARD,
    block,
    from_work,
    layer,
)
from switching import FUSION, hits
from torch import nn

import pai_torchacc as ptac


@pytest.fixture(autouse=True)
def of_any_size() -> Iterator[None]:
    """Each test begins with a model that lets layers of any size in."""
    from_work(0)
    yield
    from_work(LEAST, LEAST_OF_BLOCKS)


LAYER = "linear_act,{kind},{dtype},{sizes},cuda,{ratio},80.0"
BLOCK = "mlp,{kind},{dtype},{sizes},cuda,{ratio},80.0"
SLOWER, FASTER = 0.6, 1.3


@contextlib.contextmanager
def by(
    folder: Path,
    *places: tuple[str, str, float],
    dtype: str = "float32",
    line: str = LAYER,
) -> Iterator[None]:
    """Have a table decide, of a kind, sizes and a ratio for each place."""
    lines = [
        line.format(kind=kind, sizes=sizes, ratio=ratio, dtype=dtype)
        for kind, sizes, ratio in places
    ]
    path = cuda_tables.write(folder / "gpu.csv", lines)
    with ptac.enable(FUSION, calibration=path):
        yield


def trains(net: nn.Sequential, m: int = 8, op: str = FORWARD) -> bool:
    """Whether a step is by our node; else why not is asserted, of both operators."""
    weight = net[0].weight
    x = torch.randn(m, weight.shape[1]).to(weight, copy=True).requires_grad_()
    found, backward = hits(op), hits(f"{op}_backward")
    y = net(x)
    y.sum().backward()
    assert found.accelerated == backward.accelerated
    if not found.accelerated:
        assert found.forwarded == {"not measured faster": 1}
    return bool(found.accelerated)


def infers(net: nn.Sequential, m: int = 8) -> bool:
    found = hits(FORWARD)
    weight = net[0].weight
    with torch.no_grad():
        net(torch.randn(m, weight.shape[1]).to(weight, copy=True))
    return bool(found.accelerated)


def test_below_the_model_s_threshold(tmp_path: Path) -> None:
    from_work(LEAST, LEAST_OF_BLOCKS)
    with ptac.enable(FUSION):
        assert not trains(layer(16, 24))
    with by(tmp_path, ("train_act", "8x16x16", FASTER)):
        assert trains(layer(16, 24))
        assert trains(layer(16, 24, "gelu tanh"))
        assert not trains(layer(16, 8))  # smaller than all that were measured
        assert not trains(layer(16, 24, "silu"))  # of another kind
        assert not trains(layer(16, 24, dtype=torch.bfloat16))


def test_above_the_model_s_threshold(tmp_path: Path) -> None:
    with by(tmp_path, ("train_act", "8x16x16", SLOWER)):
        assert not trains(layer(16, 24))
        assert trains(layer(16, 8))
        assert trains(layer(16, 24, "silu"))
        assert trains(layer(16, 24, dtype=torch.bfloat16))
        assert infers(layer(16, 24))
    with ptac.enable(FUSION):
        assert trains(layer(16, 24))


def test_layers_have_to_be_measured_faster(tmp_path: Path) -> None:
    """A node of ours gains nothing where it takes as long."""
    with by(tmp_path, ("train_act", "8x16x16", 1.02)):
        assert not trains(layer(16, 24))


def test_neighbours_that_disagree(tmp_path: Path) -> None:
    places = ("train_act", "8x16x64", FASTER), ("train_act", "8x64x16", SLOWER)
    with by(tmp_path, *places):
        assert trains(layer(16, 64))
        assert not trains(layer(64, 16))
        assert not trains(layer(64, 64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_of_16_bits(dtype: str, tmp_path: Path) -> None:
    from_work(LEAST, LEAST_OF_BLOCKS)
    with by(tmp_path, ("train_kernel", "8x16x16", FASTER), dtype=dtype):
        assert trains(layer(16, 16, "silu", dtype=getattr(torch, dtype)))
        assert not trains(layer(16, 16, "silu"))


def test_inference(tmp_path: Path) -> None:
    """Layers without an epilogue are stock's whatever a table says."""
    with by(tmp_path, ("infer_act", "8x16x16", SLOWER)):
        assert not infers(layer(16, 16))
        assert infers(layer(16, 8))
    with by(tmp_path, ("infer_act", "8x16x16", FASTER)):
        assert infers(layer(16, 16))
        assert not infers(layer(16, 16, "silu"))


@pytest.fixture
def tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = True
    yield
    matmul.allow_tf32 = False


def test_tf32_is_another_kind(tmp_path: Path, tf32: None) -> None:
    from_work(LEAST, LEAST_OF_BLOCKS)
    matmul = torch.backends.cuda.matmul
    with by(tmp_path, ("train_act_tf32", "8x16x16", FASTER)):
        assert trains(layer(16, 16))
        matmul.allow_tf32 = False
        assert not trains(layer(16, 16))
    with by(tmp_path, ("train_act", "8x16x16", FASTER)):
        assert trains(layer(16, 16))
        matmul.allow_tf32 = True
        assert not trains(layer(16, 16))


def test_blocks_below_the_model_s_threshold(tmp_path: Path) -> None:
    from_work(LEAST, LEAST_OF_BLOCKS)
    with ptac.enable(FUSION):
        assert not trains(block(16, 32, 16), op=MLP)
    with by(tmp_path, ("act", "8x32x32", FASTER), line=BLOCK):
        assert trains(block(16, 32, 16), op=MLP)
        assert trains(block(8, 32, 24, "gelu tanh"), op=MLP)  # as many terms
        assert not trains(block(16, 16, 16), op=MLP)
        assert not trains(block(16, 32, 16, "silu"), op=MLP)


def test_blocks_above_the_model_s_threshold(tmp_path: Path) -> None:
    net = block(16, 32, 16)
    with by(tmp_path, ("act", "8x32x32", SLOWER), line=BLOCK):
        layers, backward = hits(FORWARD), hits(BACKWARD)
        assert not trains(net, op=MLP)
        assert layers.accelerated == backward.accelerated == 1  # the first of both
        assert trains(block(16, 16, 16), op=MLP)
        assert trains(block(16, 32, 16, "silu"), op=MLP)
    with by(tmp_path, ("act", "8x32x32", 1.02), line=BLOCK):
        assert not trains(net, op=MLP)
    found = hits(MLP_BACKWARD)
    with ptac.enable(FUSION):
        assert trains(net, op=MLP)
    assert found.accelerated == 1


def test_blocks_by_tf32(tmp_path: Path, tf32: None) -> None:
    from_work(LEAST, LEAST_OF_BLOCKS)
    with by(tmp_path, ("kernel_tf32", "8x32x32", FASTER), line=BLOCK):
        assert trains(block(16, 32, 16, "silu"), op=MLP)
        torch.backends.cuda.matmul.allow_tf32 = False
        assert not trains(block(16, 32, 16, "silu"), op=MLP)


def test_a_refused_layer_has_stock_s_bits(tmp_path: Path) -> None:
    net, x = layer(16, 24), torch.randn(8, 16, device="cuda")
    grad = torch.randn(8, 24)
    stock = linear_layers.step(net, x, grad)
    with by(tmp_path, ("train_act", "8x16x16", SLOWER)):
        found = linear_layers.step(net, x, grad)
    for name, tensor in stock.items():
        assert torch.equal(found[name], tensor)

"""Layers timed in float and quantized, for ``quantize_model(measure=True)``.

On inputs made up for each kind of call, in blocks that alternate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc.quantization import quantizer, selection
from pai_torchacc.quantization.record import ROWS, Record

Call = Callable[[Tensor], Tensor]

_BLOCKS = 9
_BLOCK_NS = 400_000
_FASTER = 1.05
_IMAGE = (28, 28)


def measure(
    layers: list[Any], shapes: dict[nn.Module, tuple[int, ...]], method: str
) -> None:
    """Time every layer; with method "auto" the times decide instead of the table."""
    for layer in layers:
        copied = layer.copied
        state = copied._int8
        buckets = []
        for kind, how in state.record.buckets:
            x = _input(layer, kind, shapes.get(layer.module))
            if layer.weight.is_cuda:
                is_float = x.is_floating_point()
                x = x.to(layer.weight.device, layer.weight.dtype if is_float else None)
            ways = _ways(layer.module, copied)
            float_s, ours_s = state.measured[kind] = _timed(*ways, x)
            measured = layer.format.name if float_s / ours_s >= _FASTER else "float"
            buckets.append((kind, measured if method == "auto" else how))
        layer.buckets = tuple(buckets)
        state.take(Record(method, layer.buckets, layer.format))
        selection.decide(layer, method)
        with quantizer.ordinary():
            copied._put(copied._laid_out(copied._plain(), copied._scale()))
    selection.follow(layers)


def _ways(module: Any, copied: Any) -> tuple[Call, Call]:
    """What computes in float, and what quantized; of an attention, its projection."""
    if isinstance(module, nn.MultiheadAttention):
        rows = 3 * module.embed_dim
        return (
            lambda x: F.linear(x, module.in_proj_weight, module.in_proj_bias),
            lambda x: copied._project(x, 0, rows),
        )
    return partial(type(module).forward, module), partial(type(copied).forward, copied)


def _input(layer: Any, kind: str, shape: tuple[int, ...] | None) -> Tensor:
    module = layer.module
    if isinstance(module, nn.Embedding):
        return torch.arange(128, device="cpu") % module.num_embeddings
    if isinstance(module, nn.Conv2d):
        sizes = shape or (1, module.in_channels, *_IMAGE)
    else:
        sizes = ROWS[kind].typical, layer.weight.shape[1]
    generator = torch.Generator().manual_seed(0)
    return torch.randn(sizes, generator=generator, device="cpu")


def _timed(stock: Call, ours: Call, x: Tensor) -> tuple[float, float]:
    """Least seconds a call, in float and quantized."""
    with quantizer.ordinary():
        repeats = max(1, int(_BLOCK_NS / max(_block(stock, x, 1), 1)))
        _block(ours, x, 1)
        best = [float("inf")] * 2
        for _ in range(_BLOCKS):
            for i, way in enumerate((stock, ours)):
                best[i] = min(best[i], _block(way, x, repeats) / repeats)
    return best[0] / 1e9, best[1] / 1e9


def _block(way: Call, x: Tensor, repeats: int) -> int:
    _wait_for(x.device)
    start = time.perf_counter_ns()
    for _ in range(repeats):
        way(x)
    _wait_for(x.device)
    return time.perf_counter_ns() - start


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""What a call costs that comes to our override of an aten operator and goes to stock.

``python -m benchmarks.override_forwarding`` prints nanoseconds a call, the smallest of
interleaved blocks: stock, and what is added with the operator overridden, switched off
inside (``boxed``: torch's boxing and ours) and unserved (``unserved``: everything).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import pai_torchacc as ptac
from pai_torchacc import _C

ROUNDS, CALLS = 40, 1000


def cases() -> dict[str, Callable[[], object]]:
    """Small calls of operators that are overridden."""
    aten = torch.ops.aten
    x, w = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    grad, rows = torch.ones(1, 4, 4, 4), torch.randn(4, 10)
    return {
        "max_pool2d": lambda: aten.max_pool2d_with_indices.default(x, [2, 2], [2, 2]),
        "avg_pool2d": lambda: torch._C._nn.avg_pool2d(x, [2, 2], [2, 2]),
        "adaptive_avg_pool2d": lambda: torch._C._nn.adaptive_avg_pool2d(x, [2, 2]),
        "log_softmax": lambda: torch._log_softmax(rows, 1, False),
        "conv2d": lambda: torch.conv2d(x, w),
        "conv2d_backward": lambda: aten.convolution_backward.default(
            grad, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3
        ),
    }


def block(call: Callable[[], object]) -> float:
    """Nanoseconds a call."""
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS


def measure(op: str, call: Callable[[], object]) -> list[float]:
    """Best of stock, of the override switched off inside, and of the override."""
    off = _C.reasons().index("switched off")
    best = [float("inf")] * 3
    for _ in range(ROUNDS):
        best[0] = min(best[0], block(call))
        with ptac.enable_operator_fusion():
            _C.override_install([op])
            best[2] = min(best[2], block(call))
            _C.set_gate(op, off)
            best[1] = min(best[1], block(call))
    return best


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{'operator':22} {'stock':>8} {'boxed':>8} {'unserved':>8}  ns a call")
    with torch.inference_mode():
        for op, call in cases().items():
            stock, boxed, unserved = measure(op, call)
            print(
                f"{op:22} {stock:8.0f} {boxed - stock:+8.0f} {unserved - stock:+8.0f}"
            )


if __name__ == "__main__":
    main()

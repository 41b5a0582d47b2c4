"""What a call costs that comes to our override or stand-in and goes to stock.

``python -m benchmarks.override_forwarding`` prints nanoseconds a call, the smallest of
interleaved blocks: stock, and what is added with the operator overridden, switched off
inside (``off``: torch's way to us and ours to stock) and unserved (``unserved``:
everything). The backward of a convolution includes autograd's own time. Stand-ins are
called in Python: by ``nn.Sequential`` for ``linear_act``, and ``cross_entropy``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import pai_torchacc as ptac
from pai_torchacc import _C

ROUNDS, CALLS = 40, 1000


def cases() -> dict[str, Callable[[], object]]:
    """Small calls of operators that are overridden or have a stand-in."""
    x, w = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 3, 3)
    grad, rows = torch.ones(1, 4, 4, 4), torch.randn(4, 10)
    targets, copied = torch.arange(4), torch.empty(4, 10)
    layers = nn.Sequential(nn.Linear(10, 10), nn.ReLU())
    bias, square, many = torch.randn(10), torch.randn(10, 10), torch.randn(3, 10, 10)
    with torch.inference_mode(False), torch.enable_grad():
        w_learnt = w.clone().requires_grad_()
        y = torch.conv2d(x.clone(), w_learnt)
        grad = grad.clone()
    return {
        "max_pool2d": lambda: torch.max_pool2d(x, 2),
        "avg_pool2d": lambda: torch._C._nn.avg_pool2d(x, [2, 2], [2, 2]),
        "adaptive_avg_pool2d": lambda: torch._C._nn.adaptive_avg_pool2d(x, [2, 2]),
        "mean": lambda: rows.mean(0),
        "log_softmax": lambda: torch._log_softmax(rows, 1, False),
        "copy": lambda: copied.copy_(rows),
        "conv2d": lambda: torch.conv2d(x, w),
        "conv2d_backward": lambda: torch.autograd.grad(
            y, w_learnt, grad, retain_graph=True
        ),
        "linear_act": lambda: layers(rows),
        "mm": lambda: torch.mm(rows, square),
        "addmm": lambda: torch.addmm(bias, rows, square),
        "bmm": lambda: torch.bmm(many, many),
        "baddbmm": lambda: torch.baddbmm(many, many, many),
        "cross_entropy": lambda: functional.cross_entropy(rows, targets),
    }


def block(call: Callable[[], object]) -> float:
    """Nanoseconds a call, after as many that the interpreter gets used to it by."""
    for _ in range(CALLS):
        call()
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - start) / CALLS


def measure(op: str, call: Callable[[], object]) -> list[float]:
    """Best of stock, of the override switched off inside, and of the override."""
    best = [float("inf")] * 3
    for _ in range(ROUNDS):
        best[0] = min(best[0], block(call))
        with ptac.enable_operator_fusion():
            _C.override_install([op])
            best[2] = min(best[2], block(call))
            _C.set_gate(op, "switched off")
            best[1] = min(best[1], block(call))
    return best


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{'operator':22} {'stock':>8} {'off':>8} {'unserved':>8}  ns a call")
    with torch.inference_mode():
        for op, call in cases().items():
            stock, off, unserved = measure(op, call)
            print(f"{op:22} {stock:8.0f} {off - stock:+8.0f} {unserved - stock:+8.0f}")


if __name__ == "__main__":
    main()

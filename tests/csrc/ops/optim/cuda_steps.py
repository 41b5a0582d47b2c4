"""What tests share of steps by the rows of CUDA, in the emulation and in torch."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import native
import torch

from pai_torchacc import _C

OPS = [name for name, *_ in _C.operators()]
DTYPES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float64: 2,
    torch.float16: 4,
}
"""As csrc/core/base.h numbers them."""

CHUNK_BYTES = 16384
PARAMETERS, LARGE_PARAMETERS = 4096 - 256, 32764 - 256
ENTRY_BYTES = {"sgd_step": 40, "adam_step": 64, "adamw_step": 64, "zero_grad": 16}
"""Of csrc/ops/optim/step_cuda.h."""


def build(builder: native.Builder, sanitize: str | None = None) -> Path:
    kernels = sorted((native.CSRC / "ops" / "optim").glob("*.cu"))
    sources = native.shipped_sources("core", "device")
    sources += [
        s
        for s in native.shipped_sources("ops")
        if "optim" in s.relative_to(native.CSRC).parts
    ]
    sources += native.test_sources("step_cuda_main", "random", "emulator")
    return builder.program(
        "stepcuda", [*sources, *kernels], sanitize=sanitize, link=("-ldl",)
    )


@dataclass
class Steps:
    """Parameters, a gradient for each step, and how to step."""

    op: str
    params: list[torch.Tensor]
    grads: list[list[torch.Tensor]]
    lr: float = 0.01
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    nesterov: bool = False
    maximize: bool = False
    amsgrad: bool = False
    capturable: bool = False
    step_dtype: torch.dtype = torch.float32
    lr_dtype: torch.dtype | None = None
    has_large: bool = True
    fail_at: int = 0
    order: int = 0
    shift: int = 0

    @property
    def dtype(self) -> torch.dtype:
        return self.params[0].dtype if self.params else torch.float32

    @property
    def n_states(self) -> int:
        if self.op == "sgd_step":
            return int(self.momentum != 0)
        return 0 if self.op == "zero_grad" else 2 + self.amsgrad

    def request(self) -> bytes:
        head = struct.pack(
            "=14i7d",
            *(
                OPS.index(self.op),
                DTYPES[self.dtype],
                len(self.params),
                len(self.grads),
            ),
            *(self.has_large, self.fail_at, self.order, self.shift),
            *(self.n_states, self.nesterov, self.maximize, self.capturable),
            DTYPES[self.step_dtype],
            -1 if self.lr_dtype is None else DTYPES[self.lr_dtype],
            *(self.lr, self.momentum, self.dampening, self.weight_decay),
            *(*self.betas, self.eps),
        )
        sizes = struct.pack(f"={len(self.params)}q", *(p.numel() for p in self.params))
        tensors = sum(self.grads, self.params)
        return head + sizes + b"".join(map(to_bytes, tensors))


def to_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


@dataclass
class Done:
    """What the kernels left."""

    refused: int
    status: int
    n_launches: int
    bytes_read: int
    bytes_written: int
    params: list[torch.Tensor] = field(default_factory=list)
    states: list[list[torch.Tensor]] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)


def run(program: Path, steps: Steps) -> Done:
    done = subprocess.run(
        [str(program)],
        input=steps.request(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    head = struct.calcsize("=2i3q")
    result = Done(*struct.unpack("=2i3q", done.stdout[:head]))
    left = bytearray(done.stdout[head:])

    def take(n: int, dtype: torch.dtype) -> torch.Tensor:
        n_bytes = n * dtype.itemsize
        taken = torch.frombuffer(left[:n_bytes], dtype=dtype) if n else torch.empty(0)
        del left[:n_bytes]
        return taken.to(dtype)

    for param in steps.params:
        arrays = [take(param.numel(), steps.dtype) for _ in range(1 + steps.n_states)]
        result.params.append(arrays[0])
        result.states.append(arrays[1:])
        result.counts.append(take(1, torch.float64).item())
    assert not left
    return result


def stock(steps: Steps, dtype: torch.dtype, **options: Any) -> list[torch.Tensor]:
    """The parameters after torch's steps on the CPU in this precision."""
    params = [torch.nn.Parameter(p.to(dtype, copy=True)) for p in steps.params]
    common = {
        "lr": steps.lr,
        "weight_decay": steps.weight_decay,
        "maximize": steps.maximize,
        **options,
    }
    optimizer: torch.optim.Optimizer
    if steps.op == "sgd_step":
        optimizer = torch.optim.SGD(
            params,
            momentum=steps.momentum,
            dampening=steps.dampening,
            nesterov=steps.nesterov,
            **common,
        )
    else:
        cls = torch.optim.AdamW if steps.op == "adamw_step" else torch.optim.Adam
        optimizer = cls(
            params, betas=steps.betas, eps=steps.eps, amsgrad=steps.amsgrad, **common
        )
    for grads in steps.grads:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.to(dtype, copy=True)
        optimizer.step()
    return [p.detach() for p in params]


def capturable_stock(steps: Steps, dtype: torch.dtype) -> list[torch.Tensor]:
    """The operations of torch's multi-tensor path for capturable steps, on the CPU.

    Torch takes it on the CPU only while it compiles.
    """
    from torch.optim.adam import _multi_tensor_adam

    params = [p.to(dtype, copy=True) for p in steps.params]
    moments = [[torch.zeros_like(p) for p in params] for _ in range(3)]
    counts = [torch.zeros((), dtype=steps.step_dtype) for _ in params]
    rate = steps.lr
    lr = rate if steps.lr_dtype is None else torch.tensor(rate, dtype=steps.lr_dtype)
    with mock.patch("torch.compiler.is_compiling", lambda: True):
        for grads in steps.grads:
            _multi_tensor_adam(
                *(params, [g.to(dtype, copy=True) for g in grads], *moments),
                *(counts, None, None),
                amsgrad=steps.amsgrad,
                has_complex=False,
                beta1=steps.betas[0],
                beta2=steps.betas[1],
                lr=lr,
                weight_decay=steps.weight_decay,
                eps=steps.eps,
                maximize=steps.maximize,
                capturable=True,
                differentiable=False,
                decoupled_weight_decay=steps.op == "adamw_step",
            )
    return params


def tensors(sizes: list[int], n_steps: int, dtype: torch.dtype, seed: int) -> Any:
    """Parameters and gradients, smooth, the latter of many magnitudes.

    Of float16 those whose squares it can hold: stock divides by zero else.
    """
    r = torch.Generator().manual_seed(seed)
    least = -1 if dtype == torch.float16 else -5
    params = [torch.randn(n, generator=r, dtype=torch.float64).to(dtype) for n in sizes]
    grads = []
    for _ in range(n_steps):
        noise = [torch.randn(n, generator=r, dtype=torch.float64) for n in sizes]
        scale = [torch.rand(n, generator=r, dtype=torch.float64) for n in sizes]
        grads.append(
            [
                (a * 10 ** (s * (1 - least) + least)).to(dtype)
                for a, s in zip(noise, scale, strict=True)
            ]
        )
    return params, grads


def holds(ours: list[torch.Tensor], stock: list[torch.Tensor], truth: Any) -> None:
    """The contract of ``close``, over all elements of all parameters."""
    a, b, t = (torch.cat([x.double() for x in xs]) for xs in (ours, stock, truth))
    ulp = torch.finfo(ours[0].dtype).eps

    def rms(x: torch.Tensor) -> float:
        return x.square().mean().sqrt().item()

    def most(x: torch.Tensor) -> float:
        return x.abs().max().item()

    assert rms(a - t) <= 2 * rms(b - t) + 2 * ulp * rms(t)
    assert most(a - t) <= 3 * most(b - t) + 2 * ulp * most(t)


def host_fuses() -> bool:
    """Whether torch's addition with a factor rounds once here, as on CUDA."""
    x = torch.full((64,), 1 + 2**-12)
    return torch.add(-torch.ones(64), x, alpha=x[0].item())[0].item() != 2**-11


def least_bytes(steps: Steps) -> tuple[int, int]:
    """What has to be read and written for the steps, of which the first one is new."""
    n_bytes = sum(p.numel() for p in steps.params) * steps.dtype.itemsize
    n_read = (2 + steps.n_states) * len(steps.grads)
    if steps.op == "sgd_step":
        n_read -= steps.n_states
    return n_bytes * n_read, n_bytes * (1 + steps.n_states) * len(steps.grads)


def room(op: str, has_large: bool) -> int:
    bytes_of_table = LARGE_PARAMETERS if has_large else PARAMETERS
    return (bytes_of_table - 8) // ENTRY_BYTES[op]


def check(program: Path, steps: Steps, n_launches: int) -> Done:
    """Run steps, whose numbers, traffic and launches are as they should be."""
    done = run(program, steps)
    assert (done.refused, done.status) == (0, 0)
    theirs = stock(steps, steps.dtype, foreach=False)
    holds(done.params, theirs, stock(steps, torch.float64, foreach=False))
    assert (done.bytes_read, done.bytes_written) == least_bytes(steps)
    assert done.n_launches == n_launches * len(steps.grads)
    return done

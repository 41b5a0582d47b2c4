"""How often a training step launches something on the device, stock and ours.

A real device counts by torch's profiler. In the emulation torch computes on the CPU, so
its launches follow by construction: from the operators that reach the key CUDA, and
from what each of them launches at least, by torch's sources. Ours are those that the
emulated driver was asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu import timing
from benchmarks.gpu.rows import Row
from pai_torchacc.bench.measure_cuda import is_emulated
from pai_torchacc.bench.workloads import WORKLOADS, Task

SECTION = "launches"

LAUNCHES = {
    # Convolution.cpp, _convolution: cuDNN's, then output.add_(bias)
    "_slow_conv2d_forward": 2,
    # Convolution.cpp, convolution_backward: of data and weight by cuDNN, and
    # grad_output.sum() for the bias
    "_slow_conv2d_backward": 3,
    # Activation.cpp, relu: clamp_min; cuda/TensorCompare.cu, launch_clamp_scalar
    "relu": 1,
    "threshold_backward": 1,  # cuda/ActivationThresholdKernel.cu
    # cuda/DilatedMaxPool2d.cu: a kernel; backward has gradInput.zero_() before it
    "max_pool2d_with_indices": 1,
    "max_pool2d_with_indices_backward": 2,
    # cuda/Blas.cpp, addmm_out_cuda_impl: gemm_and_bias() where a bias is a vector
    "addmm": 1,
    "mm": 1,  # there: gemm()
    "sum": 1,  # cuda/ReduceSumProdKernel.cu; cuda/Reduce.cuh, gpu_reduce_kernel
    # cuda/SoftMax.cu, host_softmax, host_softmax_backward: a kernel for 2**30 elements
    "_log_softmax": 1,
    "_log_softmax_backward_data": 1,
    # cuda/Loss.cu: a kernel; backward has grad_input.zero_() before it
    "nll_loss_forward": 1,
    "nll_loss_backward": 2,
    "fill_": 1,  # cuda/FillKernel.cu
    "zero_": 1,  # Fill.cpp: fill_(0)
    # generated from ufunc/add.h; cuda/Loops.cuh, gpu_kernel. What torch's build
    # generates was not looked up
    "add": 1,
    "add_": 1,
    "mul": 1,  # cuda/BinaryMulKernel.cu; cuda/Loops.cuh, gpu_kernel
    "mul_": 1,
}
"""The least that an operator of torch's launches, by its files in aten/src/ATen/native.

Each line was looked up there, in files of several versions, where it says no other.
What cuDNN, cuBLAS and cuBLASLt launch for a call is not in them: it is taken for one.
Convolutions of the emulation stand for cuDNN's. The data
of the first has no gradient, which ``of_torch()`` knows. Operators without a line are
an error.
"""


class _Foreach(TorchDispatchMode):
    """Counts the multi-tensor operators of a step: one launch each.

    cuda/MultiTensorApply.cuh, DepthToMaxConfig: at least 30 tensors of 320 times 65536
    elements at once, more than the models here have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look whether it is one on the device."""
        is_foreach = func._schema.name.startswith("aten::_foreach_")
        self.n += bool(is_foreach and args[0] and args[0][0].is_cuda)
        return func(*args, **(kwargs or {}))


def of_torch(names: Iterable[str]) -> int:
    """Launches of the operators of one step of a network of convolutions."""
    names = [name.removeprefix("aten::") for name in names]
    unknown = {n for n in names if n not in LAUNCHES}
    if unknown:
        raise LookupError(f"what torch launches for {unknown} is not written down")
    return sum(LAUNCHES[n] for n in names) - ("_slow_conv2d_backward" in names)


PROGRAMS = (
    ("SimpleCNN", "the article's SimpleCNN, SGD", None),
    ("SimpleCNN", "the article's SimpleCNN, Adam", torch.optim.Adam),
    ("W1", "SimpleCNN as nn.Sequential, SGD with momentum", None),
)
"""A workload, what it is called, and another optimizer than its own."""


def rows() -> Iterator[Row]:
    """The article's network, by several optimizers, and by modules alone."""
    for workload, name, optimizer in PROGRAMS:
        with torch.device("cuda"):
            task = WORKLOADS[workload].task()
        if optimizer:
            task.optimizer = optimizer(task.model.parameters())
        if is_emulated():  # the number does not depend on the batch, the time does
            x, y = next(task.batches)
            task.batches = repeat((x[:2], y[:2]))
        count = _by_construction if is_emulated() else _by_profiler
        found = {}
        for variant, prepare in (("stock", timing.stock), ("ours", timing.ours)):
            prepare()
            for _ in range(3):
                task.train_step()
            found[variant] = count(task, variant)
        for variant, (n, of_ours, how) in found.items():
            yield Row(
                SECTION,
                f"a training step of {name}",
                "float32",
                variant,
                f"{of_ours} launches are ours" if variant == "ours" else "",
                ratio=found["stock"][0] / n if n else 0.0,
                launches=n,
                note=how,
            )


def _by_construction(task: Task, variant: str) -> tuple[int, int, str]:
    emulation: Any = sys.modules["emulation"]
    assert task.optimizer
    x, y = next(task.batches)
    emulation.stock_calls()
    before = len(emulation.launches())
    task.optimizer.zero_grad()
    task.criterion(task.model(x), y).backward()
    n = of_torch(emulation.stock_calls())
    if variant == "stock":
        with _Foreach() as foreach:
            task.optimizer.step()
        n += foreach.n
        emulation.stock_calls()
    else:
        task.optimizer.step()
        n += of_torch(emulation.stock_calls())
    of_ours = len(emulation.launches()) - before
    return n + of_ours, of_ours, "by construction"


def _by_profiler(task: Task, _variant: str) -> tuple[int, int, str]:
    """Kernels, copies and fills that the device has done; ours have our names."""
    from torch.profiler import ProfilerActivity, profile

    from pai_torchacc import _C

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        task.train_step()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    events = [e.name for e in found.events() if e.device_type == cuda]
    ours = *_C.cuda_units(), "sgd_", "adam_", "large_", "count_steps", "zero_grad"
    n_ours = sum(name.startswith(ours) for name in events)
    how = "by torch's profiler" if events else "failed: torch's profiler sees nothing"
    return len(events), n_ours, how

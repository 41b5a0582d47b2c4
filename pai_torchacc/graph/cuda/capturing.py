"""What is asked of ``torch.cuda``: streams, memory pools, capture and replay.

All of it is here, behind the methods of :class:`Cuda`, so that tests can put an object
in its place that runs on the CPU and is strict about what a device demands.

Source: docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA Graphs", and
``torch/cuda/graphs.py``.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.memory_pool import cuda as memory_pool

_one_capture = threading.Lock()
"""Torch permits one at a time in a process."""


class Busy(RuntimeError):
    """Another thread captures."""


@dataclass
class Pool:
    """Memory that graphs share, and the stream that they are captured on."""

    device: torch.device
    handle: Any
    stream: Any
    last: Any = None
    """The stream of the latest replay, behind which the next one is."""
    known: set[Any] = field(default_factory=set)
    """Streams that the allocator knows to use tensors of the pool."""
    graphs: list[weakref.ref[Any]] = field(default_factory=list)
    """Captured in it; torch takes no pool again of which all graphs are gone."""
    process: int = field(default_factory=os.getpid)


def _precisions() -> tuple[Any, ...]:
    """Of float32, by torch's old and new ways, of which it tells no mixture."""
    backends = torch.backends
    found: list[Any] = [
        backends.fp32_precision,
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        backends.cudnn.rnn.fp32_precision,
    ]
    for module in (backends.cuda.matmul, backends.cudnn):
        try:
            found.append(module.allow_tf32)
        except RuntimeError:
            found.append("mixed")
    return tuple(found)


class Cuda:
    """A CUDA device by ``torch.cuda``."""

    device_type = "cuda"

    def why_not(self, device: torch.device) -> str | None:
        """Why nothing can be captured on that device now, or None."""
        if torch.version.cuda is None:
            return "this torch has no CUDA graphs"
        if torch.cuda._is_in_bad_fork():
            return "a forked process has no CUDA device"
        if torch.cuda.current_device() != device.index:
            return "another CUDA device is the current one"
        backend = torch._C._cuda_getAllocatorBackend()
        if backend != "native" and not memory_pool.has_pool():
            return f"torch's CUDA allocator is {backend}"
        return None

    def is_capturing(self) -> bool:
        """The program, or somebody else, captures on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def circumstances(self) -> tuple[Any, ...]:
        """Settings by which torch chooses kernels, as they are now; to be hashed."""
        matmul, cudnn, cuda = (
            torch.backends.cuda.matmul,
            torch.backends.cudnn,
            torch.backends.cuda,
        )
        return (
            _precisions(),
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_fp16_accumulation,
            cudnn.enabled,
            cudnn.benchmark,
            cudnn.deterministic,
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
            str(cuda.preferred_blas_library()),
            str(cuda.preferred_linalg_library()),
        )

    def make_pool(self, device: torch.device) -> Pool:
        """Memory for graphs of one module or function, and a stream."""
        return Pool(device, torch.cuda.graph_pool_handle(), torch.cuda.Stream(device))

    @contextmanager
    def aside(self, pool: Pool) -> Iterator[None]:
        """On the pool's stream, behind the current one, which goes on behind it."""
        current = torch.cuda.current_stream(pool.device)
        pool.stream.wait_stream(current)
        try:
            with torch.cuda.stream(pool.stream):
                yield
        finally:
            current.wait_stream(pool.stream)

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Tensors that were made aside are used on the current stream."""
        for tensor in tensors:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def capture(
        self, pool: Pool, generators: Iterable[Any], run: Callable[[], Any]
    ) -> tuple[Any, Any]:
        """A graph of what a call does, and what the call returned.

        Nothing of it has been executed: tensors hold anything until the first replay.

        Parameters
        ----------
        pool : Pool
            Where tensors that are made lie.
        generators : iterable of torch.Generator
            Of random numbers that it draws, beside torch's default one.
        run : callable
            Makes the call.

        Raises
        ------
        Busy
            Another thread captures.
        Exception
            Whatever the call, or the end of the capture, has raised.
        """
        if not _one_capture.acquire(blocking=False):
            raise Busy("another thread captures")
        try:
            if pool.graphs and not any(graph() is not None for graph in pool.graphs):
                pool.handle, pool.graphs = torch.cuda.graph_pool_handle(), []
            graph, returned = self._capture(pool.handle, pool.stream, generators, run)
            pool.graphs.append(weakref.ref(graph))
            return graph, returned
        except BaseException:
            self._mend(pool)
            raise
        finally:
            _one_capture.release()

    def _capture(
        self, handle: Any, stream: Any, generators: Any, run: Callable[[], Any]
    ) -> tuple[Any, Any]:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # Torch's manager leaves its stream the current one where a capture ends badly.
        with (
            torch.cuda.stream(stream),
            torch.cuda.graph(
                graph, pool=handle, stream=stream, capture_error_mode="thread_local"
            ),
        ):
            returned = run()
        return graph, returned

    def _mend(self, pool: Pool) -> None:
        """Have allocator and generator know that a capture is over.

        One that ends by an error leaves them as within it, and the next random operator
        would raise. A capture that ends well sets the generator right.
        """
        with suppress(Exception):
            index = pool.device.index
            torch._C._cuda_endAllocateToPool(index, pool.handle)
        pool.handle, pool.graphs = torch.cuda.graph_pool_handle(), []
        with suppress(Exception):
            nothing = torch.zeros(1, device=pool.device)
            run = nothing.zero_
            self._capture(torch.cuda.graph_pool_handle(), pool.stream, (), run)

    @contextmanager
    def replaying(self, pool: Pool, tensors: list[Tensor]) -> Iterator[None]:
        """Order a replay, and copies around it, behind the last one of the pool.

        Parameters
        ----------
        pool : Pool
            Of the graph.
        tensors : list of Tensor
            That the graph was captured with, or has made.
        """
        stream = torch.cuda.current_stream(pool.device)
        if pool.last is not None and pool.last != stream:
            stream.wait_stream(pool.last)
        pool.last = stream
        if stream not in pool.known:
            pool.known.add(stream)
            for tensor in tensors:
                tensor.record_stream(stream)
        yield

    def replay(self, graph: Any) -> None:
        """Execute it on the current stream."""
        graph.replay()

    def is_of_this_process(self, pool: Pool) -> bool:
        """A child has no part in graphs of its parent."""
        return pool.process == os.getpid()


layer: Any = Cuda()
"""What is asked; tests put a stand-in here."""

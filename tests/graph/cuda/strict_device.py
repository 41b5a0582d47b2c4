"""What takes the place of a CUDA device in tests: CPU tensors, and a device's rules.

A capture runs the call under a dispatch mode that notes each operator. Then it takes
back what the call has written and destroys what it has made, since a capture executes
nothing. A replay executes the notes again, at the same addresses. Each rule that is
enforced is one of a real device's:

===========================================  ===========================================
enforced here                                because on a device
===========================================  ===========================================
an operator that waits for the device, in a  "synchronizing" calls are prohibited while
capture, raises, and so does the end         a stream captures, and invalidate the
                                             capture (notes/cuda.html, "Constraints";
                                             cudaErrorStreamCaptureUnsupported)
a tensor made of Python's numbers raises     it is copied from pageable memory, for
                                             which the host waits
what a capture has written is taken back,    "GPU operations are enqueued ... not run"
what it has made is filled with NaN          (class torch.cuda.graph)
a replay reads and writes the storages of    kernels have the capture's addresses
the capture, whatever tensors have become    (notes/cuda.html, "Graph memory
of them                                      management")
a replay fails where nobody holds a storage  the allocator gives that memory to others
that the capture has read
what a capture has made, and nobody holds,   graphs of a pool share it, and later
is destroyed after each replay               operators of a graph reuse it
three calls aside before a capture           "warmup ... on a side stream" (class
                                             CUDAGraph's notes, make_graphed_callables:
                                             num_warmup_iters=3)
a capture within a capture raises            "only one capture may be underway at a time
                                             in the process" (torch/cuda/graphs.py)
no call aside while a capture is underway    a stream that waits for a capturing one
                                             becomes part of the capture
a generator that was not registered raises   CUDAGeneratorState::increase, "Attempt to
                                             increase offset for a CUDA generator not
                                             in capture mode"
a capture draws nothing; a replay draws      offsets are advanced by replay_prologue()
a replay does not count versions             kernels do not know of autograd
a replay stands in replaying()               graphs that share a pool must not run at
                                             the same time (notes/cuda.html)
results of calls aside are handed over       record_stream(), for tensors that are used
                                             on another stream than their own
a pool is used in its own process            a CUDA context is not inherited by a fork
===========================================  ===========================================

``optimizers_are_capturable`` has torch's optimizers accept ``capturable=True`` for CPU
tensors, and refuse a capture without it, as ``_accelerator_graph_capture_health_check``
does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from pai_torchacc.graph.cuda.capturing import Cuda, Pool

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
AFTER_AN_ERROR = "CUDA error: operation failed due to a previous error during capture"

_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_N_WARM_UP = 3


class Memory:
    """A storage: of what a capture makes its own, else whoever else holds it."""

    def __init__(self, tensor: Tensor, is_made: bool):
        storage = tensor.untyped_storage()
        self._reference = storage._weak_ref()
        self._own = storage if is_made else None
        self._before: Any = None

    def __del__(self) -> None:
        torch.UntypedStorage._free_weak_ref(self._reference)

    def storage(self) -> Any:
        """Itself; None: it is gone."""
        return torch.UntypedStorage._new_with_weak_ptr(self._reference)

    def is_held(self) -> bool:
        """Somebody else has a tensor of it."""
        count = torch._C._storage_Use_Count
        return self._own is not None and count(self._own._cdata) > 1

    def keep(self) -> None:
        """Remember its bytes, unless that was done."""
        if self._before is None:
            self._before = self.storage().clone()

    def take_back(self) -> None:
        """Have it hold what it held."""
        storage = self.storage()
        if self._before is not None and storage is not None and storage.nbytes():
            storage.copy_(self._before)
        self._before = None

    def destroy(self) -> None:
        """Fill it with NaN."""
        if self._own is not None and self._own.nbytes():
            self._own.fill_(255)


class At:
    """Where a tensor lay when it was captured."""

    def __init__(self, memory: Memory, tensor: Tensor):
        self._memory, self._dtype = memory, tensor.dtype
        self._place = tensor.storage_offset(), tensor.shape, tensor.stride()

    def tensor(self) -> Tensor:
        """One that lies there; versions are its own."""
        storage = self._memory.storage()
        assert storage is not None, "a graph reads memory that nobody holds"
        with torch.no_grad():
            return torch.empty(0, dtype=self._dtype).set_(storage, *self._place)


class Tape(TorchDispatchMode):
    """The operators of a capture."""

    def __init__(self, pool: Pool, generators: Iterable[Any]):
        super().__init__()
        self.pool = pool
        self.is_broken = False
        self.generators = list(generators)
        self._notes: list[tuple[Any, Any, Any, Any]] = []
        self._outside: dict[int, Memory] = {}
        self._made: dict[int, Memory] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_lookup = func is torch.ops.aten.index.Tensor
        is_waiting = bool(_WAITS & set(func.tags)) and not is_lookup
        if is_waiting or func is torch.ops.aten.lift_fresh.default:
            self.is_broken = True
            raise RuntimeError(NOT_PERMITTED)
        for one in tree_flatten((args, kwargs))[0]:
            if isinstance(one, torch.Generator) and one not in self.generators:
                self.is_broken = True
                text = "Attempt to increase offset for a CUDA generator not in capture"
                raise RuntimeError(text)
        read = tree_map_only(Tensor, self._at, (args, kwargs))
        for i, argument in enumerate(func._schema.arguments):
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            # Of batch normalization torch's schema does not say that it writes.
            if argument.is_write or argument.name.startswith("running_"):
                for tensor in _tensors_in(given):
                    self._memory_of(tensor).keep()
        result = func(*args, **kwargs)
        outputs = []
        for tensor in _tensors_in(result):
            reference = tensor.untyped_storage()._cdata
            if reference in self._outside or reference in self._made:
                outputs.append(None)
                continue
            self._made[reference] = Memory(tensor, is_made=True)
            outputs.append(At(self._made[reference], tensor))
        self._notes.append((func, *read, outputs))
        return result

    def _memory_of(self, tensor: Tensor) -> Memory:
        reference = tensor.untyped_storage()._cdata
        if reference in self._made:
            return self._made[reference]
        if reference not in self._outside:
            self._outside[reference] = Memory(tensor, is_made=False)
        return self._outside[reference]

    def _at(self, tensor: Tensor) -> At:
        return At(self._memory_of(tensor), tensor)

    def take_back(self) -> None:
        """A capture has executed nothing."""
        for memory in self._outside.values():
            memory.take_back()
        for memory in self._made.values():
            memory.destroy()

    def play(self) -> None:
        """Execute it."""
        with torch.no_grad():
            for func, args, kwargs, outputs in self._notes:
                is_view = not any(outputs) and not func._schema.is_mutable
                if is_view and func.namespace == "aten":
                    continue
                given = tree_map_only(At, At.tensor, (args, kwargs))
                made = _tensors_in(func(*given[0], **given[1]))
                for output, tensor in zip(outputs, made, strict=True):
                    if output is not None:
                        output.tensor().copy_(tensor)
        for memory in self._made.values():
            if not memory.is_held():
                memory.destroy()


class StrictDevice:
    """As :class:`pai_torchacc.graph.cuda.capturing.Cuda`."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.n_captures = self.n_replays = self.n_aside = self.n_handed_over = 0
        self.n_streams = 0
        self.reason: str | None = None
        self.settings: tuple[Any, ...] = ()
        self.fails: str | None = None
        """Have the next captures end by this error."""
        self._tape: Tape | None = None
        self._ordered: Pool | None = None
        self._asides: dict[int, int] = {}

    def why_not(self, device: torch.device) -> str | None:
        return self.reason

    def is_capturing(self) -> bool:
        return self._tape is not None

    def circumstances(self) -> tuple[Any, ...]:
        return (*Cuda().circumstances(), *self.settings)

    def make_pool(self, device: torch.device) -> Pool:
        assert device.type == self.device_type
        pool = Pool(device, object(), "a stream")
        self._asides[id(pool.handle)] = 0
        return pool

    @contextmanager
    def aside(self, pool: Pool) -> Iterator[None]:
        assert self._tape is None, "a capturing stream is waited for"
        self.n_aside += 1
        self._asides[id(pool.handle)] += 1
        yield

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        self.n_handed_over += len(list(tensors))

    def capture(
        self, pool: Pool, generators: Iterable[Any], run: Callable[[], Any]
    ) -> tuple[Any, Any]:
        assert self._tape is None, "a capture is underway"
        assert pool.process == os.getpid()
        assert self._asides[id(pool.handle)] >= _N_WARM_UP, "no calls to warm up"
        generators = list(generators)
        drawn = [torch.default_generator, *generators]
        states = [one.get_state() for one in drawn]
        tape = self._tape = Tape(pool, generators)
        try:
            with tape:
                returned = run()
            if self.fails is not None:
                raise RuntimeError(self.fails)
            if tape.is_broken:
                raise RuntimeError(AFTER_AN_ERROR)
        finally:
            self._tape = None
            tape.take_back()
            for one, state in zip(drawn, states, strict=True):
                one.set_state(state)
        self.n_captures += 1
        return tape, returned

    @contextmanager
    def replaying(self, pool: Pool, tensors: list[Tensor]) -> Iterator[None]:
        assert self._ordered is None, "two graphs run at the same time"
        assert self._tape is None
        self._ordered = pool
        try:
            yield
        finally:
            self._ordered = None

    def replay(self, graph: Tape) -> None:
        assert self._ordered is graph.pool, "nothing orders the replay"
        self.n_replays += 1
        graph.play()

    def is_of_this_process(self, pool: Pool) -> bool:
        return pool.process == os.getpid()


def optimizers_are_capturable(
    device: StrictDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's optimizers take CPU tensors for a device's."""
    for name in ("adam", "adamax", "rmsprop", "nadam"):
        module = importlib.import_module(f"torch.optim.{name}")
        monkeypatch.setattr(
            module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"]
        )

    def check(self: Optimizer) -> None:
        if device.is_capturing() and not all(
            g["capturable"] for g in self.param_groups
        ):
            raise RuntimeError("Attempting CUDA graph capture of step()")

    monkeypatch.setattr(Optimizer, "_accelerator_graph_capture_health_check", check)


def _tensors_in(object: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(object)[0] if isinstance(leaf, Tensor)]

"""``prefetch``: the next batches while the program works on this one.

Two things are done ahead. Batches of worker processes are fetched by a thread. Without
workers, code of the user's would run ahead of time, and its random numbers and effects
would come in another order. Batches are copied to a device on a stream of
their own, from pinned memory; the consumer's stream waits for the copy, and memory of
the device is not used again before the consumer's stream is done with it.
"""

from __future__ import annotations

import atexit
import copy
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, sampler
from torch.utils.data.distributed import DistributedSampler

_SAMPLERS = (
    *(sampler.SequentialSampler, sampler.SubsetRandomSampler),
    *(sampler.WeightedRandomSampler, DistributedSampler),
)


class Prefetched:
    """A loader whose batches come ahead; see :func:`pai_torchacc.prefetch`.

    Everything else of the loader (``dataset``, ``batch_size``, ``sampler``, ``len()``)
    is the loader's own.
    """

    def __init__(self, loader: Any, device: torch.device | None, depth: int):
        self.loader, self.device, self.depth = loader, device, depth
        self._earlier: weakref.WeakSet[_Shared] = weakref.WeakSet()

    def __iter__(self) -> Iterator[Any]:
        for earlier in list(self._earlier):
            earlier.wait_if_over()  # persistent workers serve one iterator
        inner = iter(self.loader)
        ahead: Iterator[Any] = inner
        if self.reason is None:
            ahead = _Background(inner, self.depth)
            self._earlier.add(ahead.shared)
        if self.device is None:
            return ahead
        if self.device.type != "cuda":
            return _Copied(ahead, self.device)
        return _CopiedAhead(ahead, self.device, self.depth, self.reason is None)

    @property
    def reason(self) -> str | None:
        """Why batches are not fetched in the background; None where they are."""
        return why_foreground(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in (
            "loader",
            "_earlier",
        ):  # copying and pickling ask before there is one
            raise AttributeError(name)
        return getattr(self.loader, name)


def why_foreground(loader: Any) -> str | None:
    """Why fetching ahead would not be the same; None where it is."""
    if not isinstance(loader, DataLoader):
        return "this is no DataLoader"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return "the loader's class iterates in a way of its own"
    if not loader.num_workers:
        return "without workers, fetching ahead might shift somebody's numbers"
    batches = loader.batch_sampler
    if type(batches) is not sampler.BatchSampler or not _is_known(batches.sampler):
        return "a sampler of one's own"
    return None


def _is_known(found: Any) -> bool:
    """Whether a sampler draws nothing of others after its first index."""
    if type(found) is sampler.RandomSampler:
        return found.generator is None
    return type(found) in _SAMPLERS and getattr(found, "generator", None) is None


class _Background:
    """Batches of an iterator that a thread has fetched, at most ``depth`` of them.

    The thread begins behind the first batch, which is fetched here: samplers draw their
    numbers then. It ends with the batches, with this object, or with the program.
    """

    def __init__(self, inner: Iterator[Any], depth: int):
        self._inner: Iterator[Any] | None = inner
        self.shared = _Shared(depth)

    def __iter__(self) -> _Background:
        return self

    def __next__(self) -> Any:
        if self._inner is not None:
            batch = next(self._inner)
            inner, self._inner = self._inner, None
            modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
            self.shared.start(inner, modes)
            return batch
        batch, error = self.shared.take()
        if error is not None:
            raise error
        return batch

    def __del__(self) -> None:
        shared = self.__dict__.get("shared")
        if shared is not None:
            shared.close()


class _Shared:
    """What thread and consumer share; the thread does not hold the consumer's end."""

    def __init__(self, depth: int):
        self._depth = depth
        self._ready: deque[tuple[Any, BaseException | None]] = deque()
        self._change = threading.Condition()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def start(self, inner: Iterator[Any], modes: tuple[bool, bool]) -> None:
        """Have a thread fetch in these modes of inference and gradients."""
        name = "pai_torchacc prefetch"
        arguments = (self, inner, *modes)
        thread = threading.Thread(target=_run, args=arguments, name=name, daemon=True)
        self._thread = thread
        _running.add(self)
        thread.start()

    def put(self, batch: Any, error: BaseException | None) -> bool:
        """Add a batch, or an error in its place; whether more are wanted."""
        with self._change:
            self._change.wait_for(
                lambda: self._is_over or len(self._ready) < self._depth
            )
            if self._is_over:
                return False
            self._ready.append((batch, error))
            self._change.notify_all()
            return not isinstance(error, StopIteration)

    def take(self) -> tuple[Any, BaseException | None]:
        """The next batch, or an error in its place."""
        with self._change:
            self._change.wait_for(lambda: self._is_over or self._ready)
            if not self._ready:
                return None, StopIteration()
            batch, error = self._ready.popleft()
            self._is_over = isinstance(error, StopIteration)
            self._change.notify_all()
            return batch, error

    def close(self) -> None:
        """No more batches are wanted."""
        with self._change:
            self._is_over = True
            self._ready.clear()
            self._change.notify_all()

    def wait_if_over(self) -> None:
        """Return when the thread has left the loader, if it is to."""
        thread = self._thread
        if self._is_over and thread not in (None, threading.current_thread()):
            thread.join()


_running: weakref.WeakSet[_Shared] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """End all threads: one that is in torch when Python ends would end in an abort."""
    for shared in list(_running):
        shared.close()
        shared.wait_if_over()


def _next_of(inner: Iterator[Any]) -> tuple[Any, BaseException | None]:
    try:
        return next(inner), None
    except BaseException as error:
        return None, error


def _run(
    shared: _Shared, inner: Iterator[Any], is_inference: bool, has_grad: bool
) -> None:
    with torch.inference_mode(is_inference), torch.set_grad_enabled(has_grad):
        while shared.put(*_next_of(inner)):
            pass


def moved(batch: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """A batch, each tensor in lists, tuples and dictionaries moved."""
    if isinstance(batch, Tensor):
        return move(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(part, move) for part in batch))
    if type(batch) in (list, tuple):
        return type(batch)(moved(part, move) for part in batch)
    if type(batch) is dict:
        return {key: moved(part, move) for key, part in batch.items()}
    if isinstance(batch, MutableMapping):
        found = copy.copy(batch)
        found.update({key: moved(part, move) for key, part in batch.items()})
        return found
    return batch


class _Copied:
    """Batches on a device whose copies cannot overlap."""

    def __init__(self, inner: Iterator[Any], device: torch.device):
        self._inner, self._device = inner, device

    def __iter__(self) -> _Copied:
        return self

    def __next__(self) -> Any:
        return moved(next(self._inner), lambda tensor: tensor.to(self._device))


class _CopiedAhead:
    """Batches on a CUDA device, copied on a stream of their own.

    Copies of the next ``depth`` batches are under way where batches may be fetched
    ahead, else of this batch alone. A pinned batch is kept until its copy is done.
    """

    def __init__(
        self, inner: Iterator[Any], device: torch.device, depth: int, is_ahead: bool
    ):
        self._inner, self._device = inner, device
        self._depth = depth if is_ahead else 1
        torch.empty(0, device=device)  # without such a device, torch's own error
        self._stream = torch.cuda.Stream(device)
        self._copies: deque[tuple[Any, Any, Any]] = deque()
        self._pinned: deque[tuple[Any, Any]] = deque()
        self._end: BaseException | None = None

    def __iter__(self) -> _CopiedAhead:
        return self

    def __next__(self) -> Any:
        while self._end is None and len(self._copies) < self._depth:
            batch, self._end = _next_of(self._inner)
            if self._end is None:
                self._copies.append(self._copy(batch))
        if not self._copies:
            error, self._end = self._end, None
            raise error if error is not None else StopIteration
        pinned, copied, done = self._copies.popleft()
        here = torch.cuda.current_stream(self._device)
        here.wait_event(done)
        # The copies' memory belongs to their stream: it must not be given to another
        # batch before this stream has used it.
        moved(copied, lambda t: _recorded(t, here))
        self._pinned.append((pinned, done))
        while self._pinned and self._pinned[0][1].query():
            self._pinned.popleft()
        return copied

    def _copy(self, batch: Any) -> tuple[Any, Any, Any]:
        pinned = moved(batch, _in_pinned_memory)
        with torch.cuda.stream(self._stream):
            copied = moved(pinned, lambda t: t.to(self._device, non_blocking=True))
            done = torch.cuda.Event()
            done.record(self._stream)
        return pinned, copied, done


def _recorded(tensor: Tensor, stream: Any) -> Tensor:
    if tensor.is_cuda:
        tensor.record_stream(stream)
    return tensor


def _in_pinned_memory(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()

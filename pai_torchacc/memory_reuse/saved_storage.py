"""Memory behind saved tensors, and when it may be let go.

A box stands for one storage, whichever tensors saved it. Torch's nodes keep holders,
holders keep their box. As long as anybody else has a tensor of that storage, letting
go of it would save nothing, and somebody could still write to it; so a box waits until
its holders are the only ones. Then its contents are packed, or forgotten where they
can be computed again from what other holders keep.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from pai_torchacc._lock import saved_storage as _lock
from pai_torchacc.memory_reuse import float_mode, packing, recipes

ENOUGH = 32 << 20
"""Bytes of large saved tensors below which nothing is let go."""

_LITTLE = 4 << 20
"""Bytes below which a backward pass must have freed the others."""

LONGEST_QUEUE = 24
"""Boxes of a thread that wait; the oldest are given up."""

_FEW = 16
"""Holders of a box among which none is looked for that nobody has any more."""

_TROUBLE = (
    RuntimeError, MemoryError, AssertionError, AttributeError, LookupError, TypeError,
    ValueError,
)  # fmt: skip
"""What our part of saving may raise; what else signal handlers do is let through."""

kept: Counter[str] = Counter()
"""Why saved tensors keep their memory, and how many."""

_boxes: weakref.WeakValueDictionary[int, Box] = weakref.WeakValueDictionary()
_n_bytes_kept = 0
_is_worthwhile = False
_c: Any = None

_n_own = 0
"""References to a storage besides those of its tensors: its Python object's."""

_n_alone = 0
"""Python references to the object of a storage that no program has."""


def _n_tensors(key: int) -> int:
    return torch._C._storage_Use_Count(key) - _n_own


class _Queue(threading.local):
    """Boxes of this thread that may be let go of later."""

    def __init__(self) -> None:
        self.waiting: list[weakref.ref[Box]] = []
        self.is_busy = False


_queue = _Queue()


class Box:
    """One storage that holders share."""

    __slots__ = (
        "__weakref__", "blocker", "booked", "float_mode", "form", "holders", "is_input",
        "key", "many", "mechanism", "memory", "n_bytes", "node", "version",
    )  # fmt: skip

    def __init__(self, key: int, n_bytes: int, node: Any):
        self.form: packing.Form | None = None
        self.n_bytes = self.version = self.booked = 0
        self.key, self.node = key, node
        self.float_mode = float_mode.noted(_c)
        self.holders: list[weakref.ref[Any]] = []
        self.blocker: weakref.ref[Box] | None = None
        self.memory: Tensor | None = None
        self.many = _FEW
        self.is_input = False  # of a recipe, so that none is used for this one
        self.mechanism = ""
        self.n_bytes = n_bytes
        _keep(n_bytes)

    def __del__(self) -> None:
        if self.form is None:
            _keep(-self.n_bytes)
        self._unbook()

    def add(self, holder: Any) -> None:
        """One more that has saved this storage."""
        if len(self.holders) >= self.many:
            self.holders = [ref for ref in self.holders if ref() is not None]
            self.many = max(_FEW, 2 * len(self.holders))
        self.holders.append(weakref.ref(holder))

    def live(self) -> list[Any]:
        """Holders that somebody still has."""
        return [h for ref in self.holders if (h := ref()) is not None]

    def is_ours(self) -> bool:
        """Whether nobody else has the storage, and nobody has changed it."""
        if self.form is not None or self.memory is not None:
            return True
        return self.is_as_saved(self.live())

    def is_as_saved(self, holders: list[Any]) -> bool:
        """The same, of all its holders while they have their tensors."""
        return (
            bool(holders)
            and _n_tensors(self.key) == len(holders)
            and _obstacle(holders) is None
        )

    def settle(self, is_last_chance: bool) -> bool:
        """Let go of the memory, if this is the time; whether there is no more to do."""
        holders = self.live()
        if not holders or holders[0].tensor is None:
            return True
        if _n_tensors(self.key) != len(holders):
            if is_last_chance:
                kept["in use elsewhere"] += 1
            return False
        blocker = self.blocker() if self.blocker else None
        if blocker is not None and not is_last_chance and not blocker.is_ours():
            return False
        obstacle = _obstacle(holders)
        if len({h.tensor.dtype for h in holders}) > 1:
            obstacle = "several dtypes"
        if obstacle:
            kept[obstacle] += 1
            return True
        try:
            form = self._form(holders[0].tensor, is_last_chance)
        except (RuntimeError, MemoryError) as error:
            kept[_said_of(error)] += 1
            return True
        if isinstance(form, Box):
            self.blocker = weakref.ref(form)
            return False
        if form is None:
            kept["no form for it"] += 1
        elif self.is_as_saved(holders):
            self._let_go(form, holders)
        else:
            kept["changed while packing"] += 1
        return True

    def _form(self, tensor: Tensor, is_last_chance: bool) -> Any:
        flat = tensor.as_strided((self.n_bytes // tensor.element_size(),), (1,), 0)
        form = recipes.find(_c, self, flat)
        if isinstance(form, Box) and is_last_chance:
            form = None
        return form or packing.find(_c, flat)

    def _let_go(self, form: packing.Form, holders: list[Any]) -> None:
        if _boxes.get(self.key) is self:
            del _boxes[self.key]
        self.form = form
        _keep(-self.n_bytes)
        self.mechanism, self.booked = form.mechanism, self.n_bytes - form.bytes
        _c.saved_book(self.mechanism, self.booked)
        for holder in holders:
            tensor = holder.tensor
            geometry = (tensor.size(), tensor.stride(), tensor.storage_offset())
            _c.saved_release(holder, geometry)

    def tensor_of(self, holder: Any) -> Tensor:
        """What one of its holders has saved; others go on waiting for theirs."""
        if holder.tensor is not None:
            return _c.saved_unpack(holder)
        return self.content().as_strided(*holder.geometry)

    def content(self) -> Tensor:
        """The memory anew, flat, which from now on is kept as long as the box is.

        Whoever wants it is followed by all others soon, or by nobody.
        """
        form = self.form
        if form is not None:
            memory = form.content()
            with _lock:
                if self.form is form:  # no other thread was faster
                    self.memory, self.version = memory, memory._version
                    _keep(self.n_bytes)
                    self.form = None
                    self._unbook()
        assert self.memory is not None
        if self.memory._version != self.version:
            raise RuntimeError("a saved tensor was modified after it was unpacked")
        return self.memory

    def _unbook(self) -> None:
        if self.booked:
            _c.saved_book(self.mechanism, -self.booked)
            self.booked = 0


def _keep(n_bytes: int) -> None:
    global _n_bytes_kept, _is_worthwhile  # noqa: PLW0603
    _n_bytes_kept += n_bytes
    if _n_bytes_kept >= ENOUGH:
        _is_worthwhile = True
    elif _n_bytes_kept < _LITTLE:
        _is_worthwhile = False


def consider(holder: Any, tensor: Tensor) -> Box | None:
    """Take up a large tensor that is being saved; see ``saved_pack``.

    The program's forward pass goes on whatever happens here.
    """
    if _queue.is_busy:
        return None
    _queue.is_busy = True
    try:
        if _is_worthwhile:
            _settle_waiting()
        box = _box_of(tensor)
        if box is not None:
            box.add(holder)
    except _TROUBLE as error:
        kept[_said_of(error)] += 1
        return None
    finally:
        _queue.is_busy = False
    return box


def _said_of(error: Exception) -> str:
    """Torch has no exception of its own for want of the CPU's memory."""
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return "no memory to pack"
    return f"trouble: {type(error).__name__}"


def _obstacle(holders: list[Any]) -> str | None:
    """Who has changed the memory, could with no tensor of it, or take it away."""
    if any(h.tensor._version != h.version for h in holders):
        return "changed in place"
    # A tensor that was saved is still there, where nobody has its memory.
    if any(h.origin is not None and h.origin() is not None for h in holders):
        return "given other memory"
    storage = holders[0].tensor.untyped_storage()
    if not _is_torchs_own(storage):
        return "not torch's own memory"
    if sys.getrefcount(storage) != _n_alone:
        return "storage in use"
    return None


def _is_torchs_own(storage: torch.UntypedStorage) -> bool:
    """Or numpy, a file or another process may write to it, with no tensor of it."""
    return storage.resizable() and not storage.is_shared()


def _box_of(tensor: Tensor) -> Box | None:
    storage = tensor.untyped_storage()
    key = storage._cdata
    box = _boxes.get(key)
    if box is None:
        if not _is_torchs_own(storage):
            kept["not torch's own memory"] += 1
            return None
        node = recipes.producer(tensor.grad_fn)
        box = Box(key, storage.nbytes(), node)
        _boxes[key] = box
        if node is not None or packing.is_promising(_c, tensor):
            _queue.waiting.append(weakref.ref(box))
    return box


def _settle_waiting() -> None:
    still = _unsettled(_queue.waiting, False)
    n_too_many = len(still) - LONGEST_QUEUE
    if n_too_many > 0:
        _unsettled(still[:n_too_many], True)
        del still[:n_too_many]
    _queue.waiting = still


def _unsettled(
    waiting: list[weakref.ref[Box]], is_last_chance: bool
) -> list[weakref.ref[Box]]:
    still = []
    for ref in waiting:
        box = ref()
        if box is None:
            continue
        if not is_last_chance and _n_tensors(box.key) != len(box.holders):
            still.append(ref)  # as settle() finds with more effort
        elif box.settle(is_last_chance) or is_last_chance:
            box.node = None
        else:
            still.append(ref)
    return still


def restore(holder: Any) -> Tensor:
    """The tensor that a holder has let go of.

    Computed as in the thread that computed forward: without gradients or modes, and in
    its setting.
    """
    if _c.thread_is_plain() and not torch.is_grad_enabled():
        return _computed(holder)
    with (
        torch.no_grad(),
        torch._C._DisableTorchDispatch(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
    ):
        return _computed(holder)


def _computed(holder: Any) -> Tensor:
    box = holder.box
    form = box.form
    if form is None or form.mechanism != recipes.MECHANISM:
        return box.tensor_of(holder)  # the same in any setting
    return float_mode.within(_c, box.float_mode, lambda: box.tensor_of(holder))


def install(c: Any) -> bool:
    """Remember the extension; whether torch tells who has a storage."""
    global _c, _n_own, _n_alone  # noqa: PLW0603
    _c = c
    tensor = torch.empty(1, device="cpu")
    key = tensor.untyped_storage()._cdata
    _n_own = torch._C._storage_Use_Count(key) - 1
    storage = tensor.untyped_storage()
    _n_alone = sys.getrefcount(storage)
    del storage
    alias = tensor.detach()
    is_told = _n_tensors(key) == 2  # noqa: PLR2004
    del alias
    return is_told and _n_tensors(key) == 1 and _n_own in (0, 1)

"""``data_pipeline``: batches that arrive in time, bit for bit those of stock.

Loaders keep their samplers, their order and their random numbers; what changes is how a
batch is fetched. A :class:`torch.utils.data.TensorDataset` is gathered at once, in C.
So are samples of a class whose ``__getitem__`` is proved to do nothing but take rows of
tensors or arrays and change them in a way that is the same for many as for one. Worker
processes send batches through memory that they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pai_torchacc import _host, _switch
from pai_torchacc._features import register
from pai_torchacc._switch import Handle
from pai_torchacc.fusion.foreign import Yielding

if TYPE_CHECKING:
    from pai_torchacc._config import Config

_ledger = Yielding()


def install(c: Any, config: Config) -> str | None:
    """Fetch batches at once from now on, also for loaders that exist."""
    _host.learnt()
    from pai_torchacc.data_pipeline import fetching, stand_ins

    fetching.Fetcher.is_on = True
    if not len(_ledger):
        stand_ins.install(_ledger)
    return None


def remove(c: Any) -> None:
    """Loaders fetch as stock; iterators under way go on with the same batches."""
    from pai_torchacc.data_pipeline import fetching

    fetching.Fetcher.is_on = False
    _ledger.undo()


def about(config: Config) -> str:
    """Nothing to choose."""
    return "batches at once"


def remarks() -> list[str]:
    """What others have changed, and we left as it is."""
    return list(_ledger.remarks)


def document() -> dict[str, Any]:
    """``data_pipeline``: by dataset class and workers, batches and waiting."""
    if not len(_ledger):
        return {}
    from pai_torchacc.data_pipeline import waiting

    return {"data_pipeline": [entry.document() for entry in waiting.loaders()]}


def lines(content: dict[str, Any]) -> list[str]:
    """One for each kind of loader."""
    return [_line(entry) for entry in content.get("data_pipeline", [])]


def _line(entry: dict[str, Any]) -> str:
    workers = f", {entry['workers']} workers" if entry["workers"] else ""
    fast = entry["at_once"] or entry["through_ring"]
    text = f"{entry['dataset']}{workers}: {entry['batches']} batches"
    if fast:
        text += f", {fast} " + ("at once" if entry["at_once"] else "through the ring")
    if entry["stall"] is not None:
        text += f"; data is waited for {entry['stall']:.1%} of the time"
        before = entry["stall_before"]
        if before is not None and entry["at_once"]:
            text += f", by stock {before:.1%}"
    if entry["reasons"]:
        why = max(entry["reasons"], key=entry["reasons"].__getitem__)
        text += f"; by stock: {why}"
    return text


def reset(c: Any) -> None:
    """Count batches and waiting anew."""
    if len(_ledger):
        from pai_torchacc.data_pipeline import waiting

        waiting.reset()


def enable_data_pipeline() -> Handle:
    """Have data loaders fetch whole batches at once: the same batches, sooner.

    By name only. Loaders of :class:`torch.utils.data.DataLoader`, made before or after,
    give the same batches in the same order, bit for bit, and leave random number
    generators in the same state. Served are map-style datasets with the default collate
    function:

    - ``TensorDataset``, and ``Subset`` of what is served (so ``random_split``);
    - classes whose ``__getitem__`` takes rows of tensors, numpy arrays or lists kept as
      attributes and converts them in common ways (dtypes, shapes, arithmetic with
      numbers). Its source is read, and compared with the bytecode that runs; a few
      samples are fetched both ways before the first batch;
    - such classes with torchvision's ToTensor, Normalize, Pad, RandomCrop, CenterCrop
      and flips, on images kept as arrays of bytes. They draw torch's random numbers.

    Everything else is stock's, and :func:`report` says why. Worker processes that are
    forked send any default-collated batch through shared memory that is used again.
    Such tensors are not in shared memory themselves (``is_shared()`` is False).

    Until :func:`disable_data_pipeline`, ``_DatasetKind.create_fetcher``,
    ``_BaseDataLoaderIter.__next__`` and ``_MultiProcessingDataLoaderIter.__init__`` in
    :mod:`torch.utils.data.dataloader` have stand-ins. The report says what share of the
    time a program waits for data.

    Returns
    -------
    Handle
    """
    return _switch.enable_one("data_pipeline")


def prefetch(loader: Any, device: Any = None, depth: int = 2) -> Any:
    """Have the next batches of a loader fetched, and copied, while this one is used.

    Needs no switch. The batches are the loader's, bit for bit, in its order, and
    random number generators end in the same state. So a thread fetches ahead only where
    that cannot shift anybody's numbers: the loader has worker processes, its class
    iterates as torch's does, and its sampler is one of torch's without a generator of
    the user's. Elsewhere batches are fetched when they are asked for, and ``.reason``
    says why.

    Parameters
    ----------
    loader : iterable
        A :class:`torch.utils.data.DataLoader`, or any iterable of batches.
    device : str or torch.device, optional
        Where the tensors of a batch are to be. On CUDA they are copied from pinned
        memory on a stream of their own, which the consumer's stream waits for. Default:
        where the loader has them.
    depth : int
        How many batches to have ready, at least 1.

    Returns
    -------
    Prefetched
        An iterable with the loader's length and attributes. Each iteration is one of
        the loader's; one that is left early ends its thread.

    Raises
    ------
    TypeError, ValueError
        The loader cannot be iterated over; ``depth`` is no integer from 1 on.
    """
    if not isinstance(depth, int) or isinstance(depth, bool):
        raise TypeError(f"depth is an integer, not {type(depth).__name__}: {depth!r}")
    if depth < 1:
        raise ValueError(f"depth={depth}; it is 1 or more")
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"loader is an iterable, not {type(loader).__name__}")
    import torch

    from pai_torchacc.data_pipeline.prefetching import Prefetched

    return Prefetched(loader, None if device is None else torch.device(device), depth)


register(__name__, "data_pipeline", rank=7)

"""The switch ``data_parallelism``: ``nn.DataParallel`` in one process or in many.

In one process DataParallel stays torch's own. Under a launcher, and where asked for by
``mode="ddp"``, each process computes its rows of every batch: what torch does between
the GPUs of one process, done between processes, with gradients summed as
DistributedDataParallel does. The script sees whole batches, outputs and losses.
:mod:`.functions` says how, :mod:`.checking` when.
"""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from pai_torchacc import _options, _switch
from pai_torchacc._config import Config
from pai_torchacc._features import register
from pai_torchacc._switch import Handle
from pai_torchacc.data_parallelism import launch, threads
from pai_torchacc.fusion.foreign import Yielding

if TYPE_CHECKING:
    from pai_torchacc.data_parallelism.explaining import Explanation

_ledger = Yielding()
_mode: list[str] = []
_device: list[tuple[int, int]] = []
"""The GPU that was torch's current one, and the one of this rank."""


def install(c: Any, config: Config) -> str | None:
    """Have DataParallel be as the mode says; why it cannot be."""
    mode = config.parallelism
    if _mode == [mode]:
        return None
    remove(c)
    if mode == "off":
        return None
    import torch

    if mode == "ddp":
        if not torch.distributed.is_available():
            return "this torch has no torch.distributed"
        try:
            launched = launch.found()
        except ValueError as error:
            return str(error)
        if launched is not None and torch.cuda.device_count() > 1:
            _use_gpu(launched.local_rank % torch.cuda.device_count())
        if launched is not None and (trouble := _meet(launched)):
            remove(c)
            return trouble
    if torch.cuda.device_count() == 0:
        threads.fit()
    from pai_torchacc.data_parallelism import stand_ins

    trouble = stand_ins.install(_ledger, is_dividing=mode == "ddp")
    if trouble is None:
        _mode[:] = [mode]
    else:
        remove(c)
    return trouble


def _meet(launched: launch.Launch) -> str | None:
    """Random numbers are alike from now on; why they cannot be."""
    import torch

    # Spawned children import the script again before they have a parent_process().
    is_child = multiprocessing.current_process().name != "MainProcess"
    if is_child or torch.distributed.is_initialized():
        return None  # the first model that is wrapped brings it about
    from pai_torchacc.data_parallelism import group

    try:
        group.meet(launched)
    except (ValueError, RuntimeError) as error:
        return f"the processes did not meet: {error}"
    return None


def _use_gpu(index: int) -> None:
    import torch

    _device[:] = [(torch.cuda.current_device(), index)]
    torch.cuda.set_device(index)


def remove(c: Any) -> None:
    """DataParallel is torch's own at once; threads are as many as before."""
    _mode.clear()
    _ledger.undo()
    threads.undo()
    for name in ("noted", "ranks"):
        if module := sys.modules.get(f"{__name__}.{name}"):
            module.forget()
    if _device:
        torch, (before, ours) = sys.modules["torch"], _device.pop()
        if torch.cuda.current_device() == ours:
            torch.cuda.set_device(before)


def about(config: Config) -> str:
    """The mode."""
    return f"mode {config.parallelism}"


def remarks() -> list[str]:
    """What others have changed, before or after us, and we left as it is."""
    return list(_ledger.remarks)


def document() -> dict[str, Any]:
    """``data_parallelism``: the explanation's fields, while the switch is on."""
    return {"data_parallelism": asdict(explain_parallelism())} if _mode else {}


def lines(content: dict[str, Any]) -> list[str]:
    """The explanation."""
    entry = content.get("data_parallelism")
    if not entry:
        return []
    from pai_torchacc.data_parallelism.explaining import Explanation

    return str(Explanation(**entry)).splitlines()


def enable_data_parallelism(
    mode: Literal["auto", "off", "dp", "ddp"] = "auto",
) -> Handle:
    """Run ``nn.DataParallel`` scripts well in one process, or in many, unedited.

    By name only. Call it at the top of the script, before models are wrapped.

    In one process DataParallel stays torch's own. Without a GPU it only calls its
    module; torch's threads are then lowered to the processors that affinity and the
    control group's quota leave, unless ``OMP_NUM_THREADS``, ``MKL_NUM_THREADS`` or
    ``torch.set_num_threads`` has said otherwise.

    In several processes, with ``mode="ddp"``, each call of a DataParallel computes this
    rank's rows of the batch; outputs are gathered, and gradients summed, so that every
    rank has those of the whole batch, whatever the loss. A model's first batch is
    computed both ways on copies, outputs, gradients, buffers and attributes: a
    difference of their norms above 1e-6, in float64 where float32 rounds more, has all
    ranks compute whole batches instead, with one warning. BatchNorm in training is such
    a case, and so are hooks inside the model.

    What changes in the process: ``nn.DataParallel.__init__``; with ``mode="ddp"`` also
    ``nn.DataParallel.forward``, ``DistributedSampler.__iter__``, and torch's current
    GPU, which becomes the rank's. Random numbers of torch, ``random`` and NumPy become
    those of rank 0, now and when a model is wrapped. Then also parameters and buffers
    do, and the ranks meet in the script's process group, or in one that is made (NCCL
    where each rank has a GPU, else Gloo) and destroyed when the process ends.
    :func:`disable_data_parallelism` undoes all but what came from rank 0, and that
    group.

    Parameters
    ----------
    mode : {"auto", "off", "dp", "ddp"}
        ``"auto"`` and ``"dp"``: torch's own DataParallel. Under a launcher each process
        then trains by itself, and :func:`explain_parallelism` says so. ``"ddp"``: as
        above. ``"off"``: nothing is changed.

    Returns
    -------
    Handle
        Not active, with its reason, where ``WORLD_SIZE`` or ``RANK`` is wrong, or the
        ranks do not meet within ten minutes.

    Raises
    ------
    ValueError, TypeError
        There is no such mode.
    RuntimeError
        Later, by a call of the model: the ranks were given different batches, or one
        trains where another evaluates.
    """
    checked = _options.parallelism_checked(mode)
    return _switch.enable_one("data_parallelism", parallelism=checked)


def explain_parallelism() -> Explanation:
    """What becomes of ``nn.DataParallel`` here, and why; before and after enabling.

    Returns
    -------
    pai_torchacc.data_parallelism.explaining.Explanation
        As text, a few lines: the decision, the reason, threads, and of each model what
        was measured on its first batch.
    """
    from pai_torchacc.data_parallelism.explaining import explain

    return explain(_mode[0] if _mode else "off")


register(__name__, "data_parallelism", rank=6, options="parallelism")

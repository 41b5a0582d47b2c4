"""The switch ``tune_ddp``: better arguments for DistributedDataParallel.

The program's own ``DistributedDataParallel(...)`` calls get arguments that they did not
give, see :mod:`.wrapping`. Nothing else of torch.distributed is touched.
"""

from __future__ import annotations

from typing import Any, Literal

from pai_torchacc import _options, _switch
from pai_torchacc._config import Config, DdpOptions
from pai_torchacc._features import register
from pai_torchacc._switch import Handle
from pai_torchacc.fusion.foreign import Yielding

_ledger = Yielding()


def install(c: Any, config: Config) -> str | None:
    """Tune wrappers from now on."""
    import torch.distributed as dist

    if not dist.is_available():
        return "this torch is built without torch.distributed"
    from pai_torchacc.distributed import wrapping

    wrapping.options_are(config.ddp)
    if not len(_ledger) and not wrapping.install(_ledger):
        remarks = ", ".join(_ledger.remarks)
        _ledger.undo()
        return remarks or "DistributedDataParallel was changed by others"
    return None


def remove(c: Any) -> None:
    """Wrappers are stock's again; hooks of those that are there send float32."""
    from pai_torchacc.distributed import wrapping

    wrapping.forget()
    _ledger.undo()


def about(config: Config) -> str:
    """How gradients are sent."""
    return f"comm {config.ddp.comm}"


def remarks() -> list[str]:
    """What others have changed, and we left as it is."""
    return list(_ledger.remarks)


def document() -> dict[str, Any]:
    """``ddp``: what each living wrapper was given and why not more."""
    if not len(_ledger):
        return {}
    from pai_torchacc.distributed import wrapping

    return {"ddp": wrapping.entries()}


def lines(content: dict[str, Any]) -> list[str]:
    """One for each wrapper."""
    result = []
    for entry in content.get("ddp", []):
        chosen = [f"{name}={value}" for name, value in entry["chosen"].items()]
        text = ", ".join([*chosen, *entry["reasons"]]) or "as stock"
        result.append(f"DDP of {entry['module']}, {entry['ranks']} ranks: {text}")
        if entry["link"]:
            result[-1] += f" ({entry['link']})"
    return result


def tune_ddp(comm: Literal["none", "bf16", "auto"] = "none") -> Handle:
    """Give ``DistributedDataParallel(...)`` the arguments that suit this machine.

    By name only, on every rank alike and before the wrapper is made. Models on the CPU
    over Gloo are served; others stay as the program made them, and
    :func:`~pai_torchacc.report` says why. What the program gives itself is kept.

    - ``gradient_as_bucket_view=True`` saves a copy of each gradient. A gradient that
      the program keeps is then overwritten by the next backward pass: clone it.
      ``detach_()`` on a parameter's gradient, which views forbid, does nothing instead
      of failing where there is no history to detach.
    - ``bucket_cap_mb`` follows from the time that all-reduce takes on the process
      group, which the first wrapper measures. Sums of two ranks keep their bits; more
      ranks add in an order that depends on buckets, as stock's do.
    - ``static_graph`` is never set: DDP can know only after some steps that it may be,
      and takes it before the first one only. The report says what DDP has found where
      ``find_unused_parameters=True`` costs a walk through the graph each step.

    Parameters
    ----------
    comm : {"none", "bf16", "auto"}
        ``"none"``: gradients are sent in their own precision. ``"bf16"``: rounded to
        bfloat16 (torch's ``bf16_compress_hook``), half the bytes and 8 bits of each
        gradient: numbers change. ``"auto"``: the same where it was measured 1.25 times
        as fast on this process group, which the log says; numbers may change. A hook of
        the program's own is kept in place of ours.

    Returns
    -------
    Handle
        As a context manager it restores at its end what was on before. Wrappers made
        meanwhile keep their views and buckets; those with our hook send float32 again.
        Turn it off on every rank between the same two steps.

    Raises
    ------
    TypeError, ValueError
        ``comm`` is something else. PowerSGD is not offered: see docs/distributed.md.
    """
    options = _options.ddp_checked(DdpOptions(comm))
    return _switch.enable_one("tune_ddp", ddp=options)


register(__name__, "tune_ddp", rank=6, options="ddp")

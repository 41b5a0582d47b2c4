"""Stand-ins of the switch ``tune_ddp``: the constructor, and ``Tensor.detach_``."""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pai_torchacc import _frames
from pai_torchacc._config import DdpOptions
from pai_torchacc._ledger import Ledger
from pai_torchacc.distributed import compression, cost, detaching, probe

log = logging.getLogger("pai_torchacc")

LEAST_GAIN = 1.25
"""What bfloat16 has to gain on the measured link before ``comm="auto"`` takes it."""

_STEPS_TO_BE_SURE = 10

_detaching = Ledger()
"""Apart: a ledger that yields to others takes a method of C for one of theirs."""

_options = DdpOptions()


@dataclass
class _Tuned:
    """What one wrapper was given."""

    module: str
    n_ranks: int
    chosen: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    link: str | None = None
    sending: compression.Sending | None = None


_wrappers: weakref.WeakKeyDictionary[Any, _Tuned] = weakref.WeakKeyDictionary()


def install(ledger: Ledger) -> bool:
    """Put the stand-ins in place; whether the constructor's is there."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    stock = DistributedDataParallel.__init__
    ledger.set_attribute(DistributedDataParallel, "__init__", _constructor(stock))
    if not ledger.has_set(DistributedDataParallel, "__init__"):
        return False
    detach = detaching.stand_in(torch.Tensor.detach_, _is_our_gradient)
    _detaching.set_attribute(torch.Tensor, "detach_", detach)
    return True


def options_are(options: DdpOptions) -> None:
    """What wrappers made from now on are given; hooks that are there follow."""
    global _options  # noqa: PLW0603
    _options = options
    for tuned in _wrappers.values():
        if tuned.sending:
            tuned.sending.is_rounded = options.comm != "none"


def forget() -> None:
    """Hooks send float32 from the next bucket on; ``detach_`` is stock's again."""
    options_are(DdpOptions())
    _detaching.undo()


def entries() -> list[dict[str, Any]]:
    """The report's entries of living wrappers."""
    return [
        {
            "module": tuned.module,
            "ranks": tuned.n_ranks,
            "chosen": dict(tuned.chosen),
            "reasons": [*tuned.reasons, *_found_by_ddp(wrapper)],
            "link": tuned.link,
        }
        for wrapper, tuned in list(_wrappers.items())
    ]


def _found_by_ddp(wrapper: Any) -> list[str]:
    """What DDP says after some steps; its logging data tell of it only at its end."""
    if wrapper.static_graph or not wrapper.find_unused_parameters:
        return []
    n_steps = wrapper._get_ddp_logging_data().get("iteration", 0)
    if n_steps < _STEPS_TO_BE_SURE or not wrapper.reducer._ddp_graph_static():
        return []
    return [f"the same graph for {n_steps} steps: static_graph=True may do"]


def _constructor(stock: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # which stock tells better
            given = {}
        try:
            tuned, more = _arguments(given, signature.parameters)
            stock(self, *args, **kwargs, **more)
            if tuned is not None:
                _wrappers[self] = tuned
                _register(self, tuned)
        except BaseException as error:
            _frames.hide(error)
            raise

    return construct


def _arguments(given: dict[str, Any], known: Any) -> tuple[_Tuned | None, Any]:
    """What a wrapper is to be given besides what it was given."""
    import torch
    from torch import nn

    module = given.get("module")
    if not isinstance(module, nn.Module) or not torch.distributed.is_initialized():
        return None, {}
    group = _group(given)
    parameters = [p for p in module.parameters() if p.requires_grad]
    if group is None or not parameters:
        return None, {}
    tuned = _Tuned(type(module).__name__, group.size())
    if reason := _why_not(group, parameters):
        tuned.reasons.append(reason)
        return tuned, {}
    more: dict[str, Any] = {}
    if "gradient_as_bucket_view" not in given:
        more["gradient_as_bucket_view"] = True
    size = _bucket_mb(given, known, group, parameters, tuned)
    if size is not None:
        more["bucket_cap_mb"] = size
    tuned.chosen.update(more)
    if _is_rounded(given, group, tuned):
        tuned.sending = compression.Sending(group)
        tuned.chosen["comm"] = "bf16"
    found = probe.known(group)
    tuned.link = str(found) if found else None
    return tuned, more


def _group(given: dict[str, Any]) -> Any:
    import torch.distributed as dist

    if mesh := given.get("device_mesh"):
        return mesh.get_group(mesh_dim=0) if mesh.ndim == 1 else None
    group = given.get("process_group") or dist.group.WORLD
    return group if isinstance(group, dist.ProcessGroup) else None


def _why_not(group: Any, parameters: list[Any]) -> str | None:
    import torch.distributed as dist

    # By device: what the group itself is called may be "undefined".
    config = dist.get_backend_config(group).split(",")
    backends = dict(part.split(":") for part in config)
    if kinds := {p.device.type for p in parameters} - {"cpu"}:
        return f"on {', '.join(sorted(kinds))} nothing was measured"
    if backends.get("cpu") != "gloo":
        return f"over {backends.get('cpu')} nothing was measured"
    return "a group of one rank sends nothing" if group.size() == 1 else None


def _bucket_mb(
    given: dict[str, Any], known: Any, group: Any, parameters: list[Any], tuned: _Tuned
) -> float | None:
    """Mebibytes for ``bucket_cap_mb``, None where stock's or the program's do."""
    asked = [n for n in ("bucket_cap_mb", "bucket_cap_mb_list") if n in given]
    if asked or "bucket_cap_mb" not in known:
        return None
    if not _may_measure(given, tuned):
        return None
    n_bytes = sum(p.numel() * p.element_size() for p in parameters)
    best = cost.bucket_bytes(probe.of(group).allreduce, n_bytes)
    return best and round(best / cost.MIB, 1)


def _may_measure(given: dict[str, Any], tuned: _Tuned) -> bool:
    """Whether all ranks are surely here: the constructor is a collective itself."""
    if given.get("init_sync", True):
        return True
    reason = "init_sync=False: nothing is measured"
    if reason not in tuned.reasons:
        tuned.reasons.append(reason)
    return False


def _is_rounded(given: dict[str, Any], group: Any, tuned: _Tuned) -> bool:
    """Whether gradients are to be sent in bfloat16."""
    if _options.comm == "none":
        return False
    for name in ("mixed_precision", "delay_all_reduce_named_params"):
        if given.get(name) is not None:
            tuned.reasons.append(f"{name} has its own way of sending")
            return False
    if _options.comm == "bf16":
        return True
    if not _may_measure(given, tuned):
        return False
    found = probe.of(group)
    is_worth_it = found.bf16_gain >= LEAST_GAIN
    what = "in bfloat16: numbers change" if is_worth_it else "in float32"
    log.info("DDP of %s sends gradients %s (%s)", tuned.module, what, found)
    return is_worth_it


def _register(wrapper: Any, tuned: _Tuned) -> None:
    """Register our hook before the first step, unless the program has by then."""
    if tuned.sending is not None:
        handles = [wrapper.register_forward_pre_hook(_before_the_first_step)]
        _waiting[wrapper] = handles


_waiting: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _before_the_first_step(wrapper: Any, inputs: Any) -> None:
    for handle in _waiting.pop(wrapper, []):
        handle.remove()
    tuned = _wrappers.get(wrapper)
    if tuned is None or tuned.sending is None:  # a copy, which DDP has no hooks in
        return
    if wrapper._comm_hooks:
        tuned.sending = None
        tuned.chosen.pop("comm", None)
        tuned.reasons.append("the program has a hook of its own")
        return
    wrapper.register_comm_hook(tuned.sending, compression.hook)


def _is_our_gradient(tensor: Any) -> bool:
    """Whether this is a view of a bucket that DDP would not have without us."""
    return any(
        parameter.grad is tensor
        for wrapper, tuned in list(_wrappers.items())
        if tuned.chosen.get("gradient_as_bucket_view")
        for parameter in wrapper.module.parameters()
    )

"""The switch ``adaptive_lr``: learning rates that adapt to the losses they lead to.

An optimizer's update is called with its rate times a multiplier; what the user wrote,
in ``param_groups`` and in schedulers, is never touched. How the multiplier follows from
losses and gradients is in csrc/ops/learning_rate/.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pai_torchacc import _host
from pai_torchacc._config import Config
from pai_torchacc._features import register
from pai_torchacc.fusion.foreign import Yielding

_ledger = Yielding()


def install(c: Any, config: Config) -> str | None:
    """Watch losses and multiply rates from now on."""
    _host.learnt()
    from pai_torchacc.adaptive_lr import losses, registry, saving, steps

    registry.options_are(config.rate)
    if not len(_ledger):
        if not losses.install(_ledger):
            _ledger.undo()
            return "torch.autograd.backward was changed by others"
        steps.install(_ledger)
        registry.install(_ledger)
        saving.install(_ledger)
    return None


def remove(c: Any) -> None:
    """Rates are the user's again; what was learnt about them is forgotten."""
    from pai_torchacc.adaptive_lr import registry, steps

    steps.remove()
    _ledger.undo()
    registry.forget()


def remarks() -> list[str]:
    """What others have changed, before or after us, and we left as it is."""
    return [*_ledger.declined, *_ledger.remarks]


def about(config: Config) -> str:
    """The policy."""
    return f"policy {config.rate.policy}"


def document() -> dict[str, Any]:
    """``adaptive_lr``: each optimizer's class and what has become of its rate."""
    if not len(_ledger):
        return {}
    from pai_torchacc.adaptive_lr import public, registry

    found = []
    for optimizer in registry.optimizers():
        entry = asdict(public.adaptive_lr_report(optimizer))
        del entry["history"]
        found.append({"optimizer": type(optimizer).__name__, **entry})
    return {"adaptive_lr": [entry for entry in found if entry["steps"]]}


def lines(content: dict[str, Any]) -> list[str]:
    """One for each optimizer that has stepped."""
    from pai_torchacc.adaptive_lr.public import RateReport

    result = []
    for entry in content.get("adaptive_lr", []):
        fields = {k: v for k, v in entry.items() if k != "optimizer"}
        result.append(f"{entry['optimizer']}: {RateReport(**fields, history=[])}")
    return result


register(__name__, "adaptive_lr", rank=5, options="rate")

"""The switch ``adaptive_lr``: learning rates that adapt to the losses they lead to.

An optimizer's update is called with its rate times a multiplier; what the user wrote,
in ``param_groups`` and in schedulers, is never touched. How the multiplier follows from
losses and gradients is in csrc/ops/optim/learning_rate.c.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pai_torchacc import _host
from pai_torchacc._features import Feature, register
from pai_torchacc._options import Config, RateOptions
from pai_torchacc.fusion.foreign import Yielding

_ledger = Yielding()


def install(c: Any, config: Config) -> str | None:
    """Watch losses and multiply rates from now on."""
    from pai_torchacc.adaptive_lr import losses, registry, saving, steps, tuner

    learnt = _host.learnt()
    tuner.extension_is(learnt)
    registry.options_are(config.rate)
    if not len(_ledger):
        if not losses.install(_ledger):
            _ledger.undo()
            return "torch.autograd.backward was changed by others"
        steps.install(learnt, _ledger)
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


register(
    Feature(
        name="adaptive_lr",
        rank=5,
        install=install,
        remove=remove,
        forget=lambda config: replace(config, rate=RateOptions()),
        about=about,
        remarks=remarks,
    )
)

"""The switch ``adaptive_lr``: learning rates that adapt to the losses they lead to.

An optimizer's update is called with its rate times a multiplier; what the user wrote,
in ``param_groups`` and in schedulers, is never touched. How the multiplier follows from
losses and gradients is in csrc/ops/learning_rate/.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pai_torchacc import _host, _options, _switch
from pai_torchacc._config import Config, RateOptions
from pai_torchacc._features import register
from pai_torchacc._switch import Handle
from pai_torchacc.fusion.foreign import Yielding

if TYPE_CHECKING:
    from pai_torchacc.adaptive_lr.tuner import Moment

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
    return list(_ledger.remarks)


def about(config: Config) -> str:
    """The policy."""
    return f"policy {config.rate.policy}"


def document() -> dict[str, Any]:
    """``adaptive_lr``: each optimizer's class and what has become of its rate."""
    if not len(_ledger):
        return {}
    from pai_torchacc.adaptive_lr import registry

    found = []
    for optimizer in registry.optimizers():
        entry = asdict(adaptive_lr_report(optimizer))
        del entry["history"]
        found.append({"optimizer": type(optimizer).__name__, **entry})
    return {"adaptive_lr": [entry for entry in found if entry["steps"]]}


def lines(content: dict[str, Any]) -> list[str]:
    """One for each optimizer that has stepped."""
    result = []
    for entry in content.get("adaptive_lr", []):
        fields = {k: v for k, v in entry.items() if k != "optimizer"}
        result.append(f"{entry['optimizer']}: {RateReport(**fields, history=[])}")
    return result


def enable_adaptive_lr(
    optimizer: Any = None,
    policy: Literal["auto", "loss_free", "off"] = "auto",
    floor: float | None = None,
    max_growth: float = 1.5,
    verbose: bool = False,
) -> Handle:
    """Have learning rates adapt to the losses that they lead to.

    By name only. It serves SGD, Adam, AdamW, NAdam, RAdam, RMSprop and Adagrad of
    ``torch.optim`` on the CPU, made before or after. Others keep their rates, and
    :func:`adaptive_lr_report` says why. Losses are the scalars that ``backward()`` is
    called on. A step multiplies its rate by a factor: ``param_groups``, schedulers and
    checkpoints show what the user wrote. Schedules multiply, groups keep their ratios,
    decoupled weight decay follows the user's rate.

    The yardstick is Polyak's step: the smoothed loss above its floor, divided by the
    squared gradient, times the root of 1 - momentum (to raise a rate, from momentum
    0.99 on: times 1 - momentum). The factor is exactly 1 until the yardstick exceeds
    2.2 times the user's rate or falls below a third of it (a fifth, once losses are
    near zero), and again once the two have crossed. A rate below the yardstick rises
    while losses fall by more than chance, one above follows it down; losses well above
    the first one take the rate back to the user's, or lower. Adam's kind stays within
    1/8 and 8 times the user's rate, and falls below it only while losses rise.

    The tuner ignores gradient clipping and low scheduled rates: it neither compensates
    for them nor follows them down. Rates are the user's where several processes train
    together and in compiled steps. A thread's losses count for optimizers that it has
    made or stepped.

    Until :func:`disable_adaptive_lr`, ``torch.autograd.backward``,
    ``torch.amp.GradScaler.step``, the update functions of ``torch.optim`` and
    ``Optimizer.__init__``, ``__getstate__``, ``__setstate__``, ``state_dict`` and
    ``load_state_dict`` have stand-ins. The options of one optimizer hold until then
    too, also after a ``with`` statement; its copies and pickles have them.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer, optional
        The options are for this one alone. Default: for all that have none of their
        own.
    policy : {"auto", "loss_free", "off"}
        ``"auto"``: by losses; where these say nothing (negative, constant, not scalar,
        of optimizers that work against each other) as ``"loss_free"``. That is DoG
        (Ivgi, Hinder and Carmon, 2023) without averaging of iterates, times
        1 - momentum, with the user's rate as its rival, for SGD: it keeps a copy of
        the parameters; for the others the user's rate. ``"off"``: the user's rate.
    floor : float, optional
        The lowest loss that can be had, where that is known not to be 0. A floor above
        it is estimated as training goes.
    max_growth : float
        The most by which the rate is multiplied anew in one step.
    verbose : bool
        Log changes of mode and losses that took the rate back.

    Returns
    -------
    Handle

    Raises
    ------
    TypeError, ValueError
        An option is wrong; the text names what it may be.
    """
    options = _options.rate_checked(RateOptions(policy, floor, max_growth, verbose))
    if optimizer is None:
        return _switch.enable_one("adaptive_lr", rate=options)
    _check_optimizer(optimizer)
    others = _switch.current().rate
    if not _switch.is_active("adaptive_lr"):
        others = RateOptions(policy="off")
    handle = _switch.enable_one("adaptive_lr", rate=others)
    if _switch.is_active("adaptive_lr"):
        from pai_torchacc.adaptive_lr import registry

        registry.begin_anew(optimizer, options)
    return handle


@dataclass(frozen=True)
class RateReport:
    """What has become of one optimizer's rate.

    Attributes
    ----------
    mode : {"loss", "loss_free", "off"}
        What the rate goes by.
    reason : str or None
        Why not by losses.
    multiplier, lr : float
        Of the last step: the multiplier, and the first group's rate times it.
    floor : float
        Estimate of the loss that cannot be gone below.
    rollbacks : int
        How often losses well above the first one have taken the rate back.
    steps : int
        How many were seen.
    history : list of Moment
        ``(step, loss, multiplier, lr)`` of the last 1000 steps.
    """

    mode: str
    reason: str | None
    multiplier: float
    lr: float
    floor: float
    rollbacks: int
    steps: int
    history: list[Moment] = field(repr=False)

    def __str__(self) -> str:
        mode = {"loss": "by losses", "loss_free": "without losses"}.get(
            self.mode, "the user's rate"
        )
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"adaptive lr {mode}{why}: multiplier {self.multiplier:.4g}, "
            f"lr {self.lr:.4g}, floor {self.floor:.4g}, "
            f"{self.rollbacks} rollbacks in {self.steps} steps"
        )


def adaptive_lr_report(optimizer: Any) -> RateReport:
    """What the switch ``adaptive_lr`` has made of an optimizer's rate.

    Raises
    ------
    TypeError
        This is no optimizer.
    """
    _check_optimizer(optimizer)
    lr = float(optimizer.param_groups[0]["lr"]) if optimizer.param_groups else math.nan
    if not _switch.is_active("adaptive_lr"):
        return RateReport("off", "adaptive_lr is off", 1.0, lr, 0.0, 0, 0, [])
    from pai_torchacc.adaptive_lr import registry

    found = registry.tuner_of(optimizer)
    floor = found.options.floor or 0.0
    if found.known is not None:
        floor += found.field("floor")
    history = found.history
    return RateReport(
        found.mode,
        found.reason,
        found.multiplier,
        history[-1].lr if history else lr * found.multiplier,
        floor,
        int(found.field("n_rollbacks")),
        found.n_steps,
        history,
    )


def _check_optimizer(optimizer: Any) -> None:
    from torch.optim import Optimizer

    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer is a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )


register(__name__, "adaptive_lr", rank=5, options="rate")

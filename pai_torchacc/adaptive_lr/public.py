"""What users call: the switch, and the report on one optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pai_torchacc import _options, _switch
from pai_torchacc._config import RateOptions
from pai_torchacc._switch import Handle

if TYPE_CHECKING:
    from pai_torchacc.adaptive_lr.tuner import Moment


def enable_adaptive_lr(
    optimizer: Any = None,
    policy: Literal["auto", "loss_free", "off"] = "auto",
    floor: float | None = None,
    max_growth: float = 1.5,
    verbose: bool = False,
) -> Handle:
    """Have learning rates adapt to the losses that they lead to.

    By name only. For optimizers of ``torch.optim`` on the CPU, made before or after:
    SGD, Adam, AdamW, NAdam, RAdam, RMSprop and Adagrad; others are left alone, and
    :func:`adaptive_lr_report` says why. Losses are the scalars that ``backward()`` is
    called on. A step multiplies its rate; ``param_groups``, schedulers and checkpoints
    show what the user wrote, schedules multiply, groups keep their ratios, decoupled
    weight decay follows the user's rate.

    The multiplier is exactly 1 until Polyak's step (loss above its floor, divided by
    the squared gradient, times the root of 1 - momentum; upwards from momentum 0.99 on,
    1 - momentum itself), smoothed, lies beyond 2.2 times the user's rate (in the first
    twelve steps, more; and not while it falls fast) or below a third of it (a fifth,
    where losses have come to nothing), and again once the two have crossed. In between
    the rate moves towards Polyak's while losses fall by more than chance (far below it,
    and before they have fallen by a fifth: while they do not rise), and back while they
    do not. Losses well above the first take the rate back to the user's, or below where
    Polyak's is lower or losses explode. Of Adam's kind, multipliers stay within 1/8 and
    8, and below 1 only while losses rise. Neither clipping nor a schedule's low rates
    are made up for, nor are rates lowered for them. Where several processes train
    together, and in steps that are compiled, rates are the user's. Each thread's
    backward passes are those of the optimizers that it has made or stepped.

    In the process: ``torch.autograd.backward``, ``torch.amp.GradScaler.step``, the
    update functions of ``torch.optim`` and ``Optimizer.__init__``, ``__getstate__``,
    ``__setstate__``, ``state_dict`` and ``load_state_dict`` have stand-ins until
    :func:`disable_adaptive_lr`. The options of one optimizer hold until then too, also
    where the handle was used in a ``with`` statement; its copies and pickles have them.

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

        registry.give_options(optimizer, options)
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

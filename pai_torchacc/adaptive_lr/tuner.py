"""One optimizer's rate: the losses since its last step, and what they make of it."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pai_torchacc._options import RateOptions
from pai_torchacc.adaptive_lr import directions

log = logging.getLogger("pai_torchacc")

_LONGEST_HISTORY = 1000
_STEPS_WITHOUT_LOSS = 3
_STEPS_OF_SAME_LOSS = 20

_c: Any = None
_defaults = RateOptions()
_of_optimizer: WeakKeyDictionary[Any, RateOptions] = WeakKeyDictionary()
_tuners: WeakKeyDictionary[Any, Tuner] = WeakKeyDictionary()


class Moment(NamedTuple):
    """A step, as the report lists it."""

    step: int
    loss: float | None
    multiplier: float
    lr: float


class Tuner:
    """By how much to multiply the rate of one optimizer."""

    def __init__(self, optimizer: Any, options: RateOptions):
        self.options = options
        self.numbers = [0.0] * len(_c.rate_fields())
        self.multiplier = 1.0
        self.history: deque[Moment] = deque(maxlen=_LONGEST_HISTORY)
        self.n_steps = 0
        self.loss_scale = 1.0
        self.is_stepping = False
        self.pending: list[tuple[float | None, int]] = []
        """Since the last step: losses, and how many optimizers each has reached."""
        self.begin: list[Any] | None = None
        """Where the parameters began, while there are no losses to go by."""
        self._references: list[float] = []
        self._n_missing = self._n_same = 0
        self._last_loss: float | None = None
        known = directions.direction_of(optimizer)
        self.known = known if not isinstance(known, str) else None
        self.reason = known if isinstance(known, str) else None
        self.mode = "loss"
        if options.policy == "off":
            self.known, self.reason = None, "policy='off'"
        if self.known is None:
            self.mode = "off"
        elif options.policy == "loss_free":
            self.go_without_losses("policy='loss_free'")

    def gradients(self, optimizer: Any) -> list[Any]:
        """What changes when a backward pass reaches these parameters."""
        return [
            grad if grad is None else (id(grad), grad._version)
            for group in optimizer.param_groups
            for param in group["params"]
            for grad in (param.grad,)
        ]

    def go_without_losses(self, reason: str) -> None:
        """From now on, whatever losses come."""
        if self.mode != "loss":
            return
        self.mode, self.reason = "loss_free", reason
        if self.options.verbose:
            log.info("adaptive_lr goes without losses: %s", reason)

    def next(self, optimizer: Any, scale: float = 1.0) -> float:
        """The multiplier for the step that is about to be made."""
        pending, self.pending = self.pending, []
        loss = self._loss(pending)
        self.loss_scale = 1.0
        self.n_steps += 1
        if self.known is None:
            return 1.0
        before = self.numbers[_field("n_rollbacks")]
        if self.mode == "loss" and loss is not None:
            self._by_loss(optimizer, loss, scale)
        elif self.mode == "loss_free":
            self._by_distance(optimizer, scale)
        if self.options.verbose and self.numbers[_field("n_rollbacks")] > before:
            log.info("adaptive_lr takes the rate back: loss %.4g", loss)
        groups = optimizer.param_groups
        lr = _number(groups[0]["lr"]) * self.multiplier if groups else 0.0
        self.history.append(Moment(self.n_steps, loss, self.multiplier, lr))
        return self.multiplier

    def _loss(self, pending: list[tuple[float | None, int]]) -> float | None:
        """The loss of this step, if it is one to go by."""
        if not pending or any(value is None for value, _ in pending):
            self._n_missing += 1
            if self._n_missing >= _STEPS_WITHOUT_LOSS:
                self.go_without_losses("no scalar loss reaches the parameters")
            return None
        self._n_missing = 0
        loss = sum(value / n for value, n in pending if value is not None)
        loss /= self.loss_scale
        floor = self.options.floor or 0.0
        if loss < floor - 1e-6 * (1 + abs(floor)):
            self.go_without_losses(f"the loss is below {floor:g}")
        self._n_same = self._n_same + 1 if loss == self._last_loss else 0
        self._last_loss = loss
        if self._n_same >= _STEPS_OF_SAME_LOSS:
            self.go_without_losses("the loss is constant")
        return loss

    def _by_loss(self, optimizer: Any, loss: float, scale: float) -> None:
        total = 0.0
        for group, lr in zip(
            optimizer.param_groups, self._reference_rates(optimizer), strict=True
        ):
            part = directions.descent(_c, self.known, optimizer, group, scale)
            if part is None:
                self.known, self.mode = None, "off"
                self.reason = "gradients that are sparse or not on the CPU"
                self.multiplier = 1.0
                return
            total += lr * self.known.factor(group) * part
        self.multiplier = _c.rate_next(
            self.numbers,
            loss,
            total,
            self.options.floor or 0.0,
            directions.most_exponent(self.known),
            math.log(self.options.max_growth),
        )

    def _by_distance(self, optimizer: Any, scale: float) -> None:
        """DoG, for steps along the gradient; other rates go back to the user's."""
        if self.known.numbers is not None:
            self.multiplier = 1.0
            return
        params = [p for g in optimizer.param_groups for p in g["params"]]
        if self.begin is None or len(self.begin) != len(params):
            self.begin = [p.detach().clone() for p in params]
        squares = weighted = 0.0
        for group, lr in zip(
            optimizer.param_groups, self._reference_rates(optimizer), strict=True
        ):
            part = directions.descent(_c, self.known, optimizer, group, scale)
            if part is None:
                return
            squares += part
            weighted += part * lr * self.known.factor(group) ** 2
        self.multiplier = _c.rate_next_free(
            self.numbers,
            squares,
            directions.distance(params, self.begin),
            weighted / squares if squares > 0 else 0.0,
            directions.most_exponent(self.known),
            math.log(self.options.max_growth),
        )

    def _reference_rates(self, optimizer: Any) -> list[float]:
        """The highest rate that the user has had for each group, or has announced.

        Schedules lower rates on purpose: the multiplier does not make up for it.
        """
        groups = optimizer.param_groups
        del self._references[len(groups) :]
        for i, group in enumerate(groups):
            rates = [group["lr"], group.get("initial_lr", 0), group.get("max_lr", 0)]
            highest = max(_number(rate) for rate in rates)
            if i == len(self._references):
                self._references.append(highest)
            self._references[i] = max(self._references[i], highest)
        return self._references

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs, of plain types and tensors."""
        return {
            "version": 1,
            "numbers": list(self.numbers),
            "multiplier": self.multiplier,
            "mode": self.mode,
            "reason": self.reason,
            "references": list(self._references),
            "n_steps": self.n_steps,
            "counts": [self._n_missing, self._n_same],
            "last_loss": self._last_loss,
            "begin": None if self.begin is None else [t.clone() for t in self.begin],
        }

    def load(self, state: Any) -> None:
        """Go on from there.

        Raises
        ------
        ValueError
            This is no such state.
        """
        if not isinstance(state, dict) or state.get("version") != 1:
            raise ValueError("adaptive_lr: a state of another version")
        numbers = state.get("numbers")
        if not isinstance(numbers, list) or len(numbers) != len(self.numbers):
            raise ValueError("adaptive_lr: a state of other numbers")
        self.numbers = [float(n) for n in numbers]
        self.multiplier = float(state["multiplier"])
        self._references = [float(n) for n in state["references"]]
        self.n_steps = int(state["n_steps"])
        self._n_missing, self._n_same = map(int, state["counts"])
        self._last_loss = state["last_loss"]
        begin = state["begin"]
        self.begin = None if begin is None else [t.clone() for t in begin]
        if self.known is not None and state["mode"] in ("loss", "loss_free"):
            self.mode, self.reason = state["mode"], state["reason"]

    def field(self, name: str) -> float:
        """One of the numbers by its name."""
        return self.numbers[_field(name)]


def _field(name: str) -> int:
    return _c.rate_fields().index(name)


def _number(rate: Any) -> float:
    return float(rate)


def extension_is(c: Any) -> None:
    """Whose functions compute."""
    global _c  # noqa: PLW0603
    _c = c


def options_are(options: RateOptions) -> None:
    """Of optimizers that have none of their own."""
    global _defaults  # noqa: PLW0603
    if options != _defaults:
        for optimizer in [o for o in _tuners if o not in _of_optimizer]:
            del _tuners[optimizer]
    _defaults = options


def options_of(optimizer: Any, options: RateOptions) -> None:
    """Give an optimizer its own; it begins anew with them."""
    _of_optimizer[optimizer] = options
    _tuners.pop(optimizer, None)


def forget() -> None:
    """All optimizers, and the options that they had."""
    _tuners.clear()
    _of_optimizer.clear()


def tuner_of(optimizer: Any) -> Tuner:
    """The one of an optimizer, made where there is none yet."""
    found = _tuners.get(optimizer)
    if found is None:
        options = _of_optimizer.get(optimizer, _defaults)
        found = _tuners[optimizer] = Tuner(optimizer, options)
    return found


def known_tuner(optimizer: Any) -> Tuner | None:
    """The one of an optimizer, if there is one."""
    return _tuners.get(optimizer)


def all_tuners() -> list[tuple[Any, Tuner]]:
    """Optimizers that have stepped, or were named, and theirs."""
    return list(_tuners.items())

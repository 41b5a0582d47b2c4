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
_LOSSES_OF_OTHERS = 3
_MOST_PENDING = 4096
_AGAINST_EACH_OTHER = "losses of optimizers that work against each other"
_MOST_CLIPPED = 1e9

_c: Any = None
_index: dict[str, int] = {}
"""Where each of a tuner's numbers stands."""
_defaults = RateOptions()
_of_optimizer: WeakKeyDictionary[Any, RateOptions] = WeakKeyDictionary()
_tuners: WeakKeyDictionary[Any, Tuner] = WeakKeyDictionary()


class Moment(NamedTuple):
    """A step, as the report lists it."""

    step: int
    loss: float | None
    multiplier: float
    lr: float


class Root:
    """A loss that backward was called on, and how many optimizers it has reached."""

    def __init__(self, value: float | None, n_reached: int):
        self.value = value
        self.n_reached = n_reached
        self.used_by: list[Tuner] = []


class Tuner:
    """By how much to multiply the rate of one optimizer."""

    def __init__(self, optimizer: Any, options: RateOptions):
        self.options = options
        self.numbers = [0.0] * len(_index)
        self.multiplier = 1.0
        self.history: deque[Moment] = deque(maxlen=_LONGEST_HISTORY)
        self.n_steps = 0
        self.loss_scale = 1.0
        self.is_stepping = False
        self.pending: list[Root] = []
        """Losses since the last step."""
        self.begin: list[Any] | None = None
        """Where the parameters began, while there are no losses to go by."""
        self._by_size: list[Any] = []
        self._probe: tuple[Any, float] | None = None
        self._references: list[float] = []
        self._n_of_others = 0
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

    def note(self, root: Root, optimizer: Any) -> None:
        """A backward pass from this loss has reached the parameters."""
        self.pending.append(root)
        if len(self.pending) > _MOST_PENDING:  # of gradients that nobody steps by
            self.pending[:] = [Root(None, 1)]
        if self.known is not None:
            self._probe = self._measured(optimizer)

    def _measured(self, optimizer: Any) -> tuple[Any, float] | None:
        """The smallest parameter whose gradient is not zero, and that one's norm."""
        n = sum(len(group["params"]) for group in optimizer.param_groups)
        if n != len(self._by_size):
            params = [p for group in optimizer.param_groups for p in group["params"]]
            self._by_size = sorted(params, key=lambda p: p.numel())
        for param in self._by_size:
            if param.grad is None:
                continue
            found = directions.squares(_c, [param.grad], 1.0)
            if found is None or not math.isfinite(found):
                return None
            if found > 0:
                return param, math.sqrt(found)
        return None

    def drop(self) -> None:
        """The gradients were thrown away before a step.

        Where another optimizer has stepped by the same losses, again and again, the two
        work against each other, as generator and discriminator do: what such losses say
        is not progress.
        """
        others = [tuner for root in self.pending for tuner in root.used_by]
        self._n_of_others += bool(others)
        if self._n_of_others >= _LOSSES_OF_OTHERS:
            for tuner in (self, *others):
                tuner.go_without_losses(_AGAINST_EACH_OTHER)
        self.pending.clear()

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
        for root in pending:
            root.used_by.append(self)
            if root.n_reached > 1:
                self._n_of_others = 0
        if self.known is not None and _has_other_processes():
            self._leave_alone("several processes, whose losses differ")
        if self.known is None:
            return 1.0
        loss = self._loss(pending)
        kept = self._kept(scale)
        self.loss_scale = 1.0
        self.n_steps += 1
        before = self.field("n_rollbacks")
        if self.mode == "loss" and loss is not None:
            self._by_loss(optimizer, loss, scale, kept)
        elif self.mode == "loss_free":
            self._by_distance(optimizer, scale)
        if self.options.verbose and self.field("n_rollbacks") > before:
            log.info("adaptive_lr takes the rate back: loss %.4g", loss)
        groups = optimizer.param_groups
        lr = float(groups[0]["lr"]) * self.multiplier if groups else 0.0
        self.history.append(Moment(self.n_steps, loss, self.multiplier, lr))
        return self.multiplier

    def _leave_alone(self, reason: str) -> None:
        self.known, self.mode, self.reason = None, "off", reason
        self.multiplier = 1.0

    def _kept(self, scale: float) -> float:
        """By how much gradients were scaled between backward and step, by clipping.

        Told by the smallest of them; 1 where there was none to tell.
        """
        if self._probe is None:
            return 1.0
        (param, norm), self._probe = self._probe, None
        grad = param.grad
        now = None if grad is None else directions.squares(_c, [grad], scale)
        if not now:
            return 1.0
        kept = math.sqrt(now) * self.loss_scale / norm
        return kept if 1 / _MOST_CLIPPED < kept < _MOST_CLIPPED else 1.0

    def _loss(self, pending: list[Root]) -> float | None:
        """The loss of this step, if it is one to go by."""
        if not pending or any(root.value is None for root in pending):
            self._n_missing += 1
            if self._n_missing >= _STEPS_WITHOUT_LOSS:
                self.go_without_losses("no scalar loss reaches the parameters")
            return None
        self._n_missing = 0
        loss = sum(r.value / r.n_reached for r in pending if r.value is not None)
        loss /= self.loss_scale
        floor = self.options.floor or 0.0
        if loss < floor - 1e-6 * (1 + abs(floor)):
            self.go_without_losses(f"the loss is below {floor:g}")
        self._n_same = self._n_same + 1 if loss == self._last_loss else 0
        self._last_loss = loss
        if self._n_same >= _STEPS_OF_SAME_LOSS:
            self.go_without_losses("the loss is constant")
        return loss

    def _by_loss(self, optimizer: Any, loss: float, scale: float, kept: float) -> None:
        total = 0.0
        for group, lr in zip(
            optimizer.param_groups, self._reference_rates(optimizer), strict=True
        ):
            part = directions.descent(_c, self.known, optimizer, group, scale)
            if part is None:
                self._leave_alone("gradients that are sparse or not on the CPU")
                return
            total += lr * self.known.factor(group) * part
        self.multiplier = _c.rate_next(
            self.numbers,
            loss,
            total / kept,  # the loss has the gradients that were not clipped
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
            highest = max(map(float, rates))
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
            "counts": [self._n_missing, self._n_same, self._n_of_others],
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
        try:
            numbers = [float(n) for n in state["numbers"]]
            multiplier = float(state["multiplier"])
            references = [float(n) for n in state["references"]]
            n_steps = int(state["n_steps"])
            n_missing, n_same, n_of_others = (int(n) for n in state["counts"])
            last_loss, mode, reason = state["last_loss"], state["mode"], state["reason"]
            begin = state["begin"]
            begin = None if begin is None else [t.clone() for t in begin]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"adaptive_lr: a damaged state: {error!r}") from None
        if len(numbers) != len(self.numbers):
            raise ValueError("adaptive_lr: a state of other numbers")
        self.numbers, self.multiplier, self.begin = numbers, multiplier, begin
        self._references, self.n_steps = references, n_steps
        self._n_missing, self._n_same = n_missing, n_same
        self._n_of_others, self._last_loss = n_of_others, last_loss
        if self.known is not None and mode in ("loss", "loss_free"):
            self.mode, self.reason = mode, reason

    def field(self, name: str) -> float:
        """One of the numbers by its name."""
        return self.numbers[_index[name]]


def _has_other_processes() -> bool:
    """Whether others train with us: their multipliers would be others."""
    from torch import distributed

    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def extension_is(c: Any) -> None:
    """Whose functions compute."""
    global _c  # noqa: PLW0603
    _c = c
    _index.update({name: i for i, name in enumerate(c.rate_fields())})


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

"""One optimizer's rate: what the losses since its last step make of it."""

from __future__ import annotations

import logging
import math
from array import array
from collections import deque
from typing import Any, NamedTuple

from torch import distributed

from pai_torchacc import _C
from pai_torchacc._config import RateOptions
from pai_torchacc.adaptive_lr import update_rules
from pai_torchacc.adaptive_lr.clipping import params_of
from pai_torchacc.adaptive_lr.pending import Root, Watched
from pai_torchacc.adaptive_lr.update_rules import highest_rates, moves
from pai_torchacc.adaptive_lr.watching import aside, is_of_this_thread, watch

log = logging.getLogger("pai_torchacc")

_LONGEST_HISTORY = 1000
_STEPS_WITHOUT_LOSS = 3
_STEPS_OF_SAME_LOSS = 20
_STEPS_AT_ONCE, _JUMP = 20, 1.25
"""Rates of the first steps, and of those whose loss is a quarter above the smoothed
one, go by the gradients that they are about to step by. Others go by those of the step
before, whose sums that step itself has taken. (All of them: no better, with a pass over
the gradients in every step. None: spikes are met a step late, and grow.)"""

_index: dict[str, int] = {name: i for i, name in enumerate(_C.rate_fields())}
"""Where each of a tuner's numbers stands."""
N_NUMBERS = len(_index)


class Moment(NamedTuple):
    """A step, as the report lists it."""

    step: int
    loss: float | None
    multiplier: float
    lr: float


class Tuner(Watched):
    """By how much to multiply the rate of one optimizer."""

    def __init__(self, optimizer: Any, options: RateOptions):
        super().__init__(optimizer)
        self.options = options
        self.own_options: RateOptions | None = None
        """Those that were given to this optimizer alone."""
        self._floor = options.floor or 0.0
        self._most_growth = math.log(options.max_growth)
        self._begin_numbers()
        self.multiplier = 1.0
        self.moments: deque[tuple[Any, ...]] = deque(maxlen=_LONGEST_HISTORY)
        """What ``history`` makes moments of."""
        self.n_steps = 0
        self.loss_scale = 1.0
        self.is_stepping = False
        self.sums: list[float] = []
        """Of the groups that have stepped: gradient times direction."""
        self.begin: list[Any] | None = None
        """Where the parameters began, while there are no losses to go by."""
        self.awaited: tuple[float, list[float], list[float]] | None = None
        """A loss whose step is being made; what the sum of each group that steps
        counts, which is the rate that it has times the factor; and the same of the
        highest rate, with caution, and of gradients not clipped."""
        self.references: list[float] = []
        self.n_missing = self.n_same = 0
        self.last_loss: float | None = None
        self.mode, self.reason = "loss", None
        self.known: update_rules.Direction | None = None
        known = update_rules.direction_of(optimizer)
        if options.policy == "off":
            self.leave_alone("policy='off'")
        elif isinstance(known, str):
            self.leave_alone(known)
        else:
            self.known = known
            if options.policy == "loss_free":
                self.go_without_losses("policy='loss_free'")

    def _begin_numbers(self) -> None:
        self.numbers = array("d", [0.0] * N_NUMBERS)

    def go_without_losses(self, reason: str) -> None:
        """From now on, whatever losses come."""
        if self.mode != "loss":
            return
        self.mode, self.reason = "loss_free", reason
        if self.options.verbose:
            log.info("adaptive_lr goes without losses: %s", reason)

    def begin_step(self) -> list[Root]:
        """The losses that the coming step goes by."""
        roots, self.roots = self.roots, []
        if not is_of_this_thread(self):  # what has reached it may be others' losses
            roots = []
            watch(self)
        elif self.is_idle:
            watch(self)
        self.use(roots)
        return roots

    def share_changes(self) -> None:
        """Begin anew where the first loss was counted as another share."""
        if self.field("n_steps") <= 1:
            self._begin_numbers()

    def next(
        self, optimizer: Any, stepping: list[int], roots: list[Root], scale: float
    ) -> None:
        """Find the multiplier for the step that is about to be made.

        ``stepping`` are the places of the groups that have gradients, which are to be
        multiplied by ``scale``.
        """
        reason = "several processes, whose losses differ" if _has_others() else None
        reason = reason or update_rules.reason_to_leave(optimizer)
        if reason:
            self.leave_alone(reason)
            return
        loss = self._loss(roots, optimizer)
        kept = self.clipping.kept(optimizer, scale, self.loss_scale)
        self.loss_scale = 1.0
        self.n_steps += 1
        before = self.field("n_rollbacks") if self.options.verbose else 0.0
        is_urgent = loss is not None and self._is_urgent(loss)
        # Looked for where gradients are measured anyway: in the first steps and jumps.
        if is_urgent and any(p._backward_hooks for p in params_of(optimizer)):
            self.go_without_losses("hooks may change gradients, unseen by their losses")
        self._settle(may_grow=not is_urgent)
        if self.mode == "loss" and loss is not None:
            self._await(optimizer, stepping, loss, kept)
            if is_urgent:
                for i in stepping:
                    self.tell(optimizer, optimizer.param_groups[i], scale)
                self._settle(may_grow=True)
        elif self.mode == "loss_free":
            self._by_distance(optimizer, scale)
        if self.options.verbose and self.field("n_rollbacks") > before:
            log.info("adaptive_lr takes the rate back: loss %.4g", loss)
        groups = optimizer.param_groups
        lr = float(groups[0]["lr"]) * self.multiplier if groups else 0.0
        self.moments.append((self.n_steps, loss, self.multiplier, lr))

    def leave_alone(self, reason: str) -> None:
        """The user's rate from now on."""
        self.known, self.mode, self.reason = None, "off", reason
        self.is_served = False
        self.multiplier, self.awaited = 1.0, None
        self.clipping.forget()

    def _loss(self, roots: list[Root], optimizer: Any) -> float | None:
        """The loss of this step, if it is one to go by."""
        total = 0.0 if roots else None
        for root in roots:
            total = None if total is None or root.value is None else total + root.value
        if total is None:
            self.n_missing += 1
            if self.n_missing >= _STEPS_WITHOUT_LOSS:
                self.go_without_losses("no scalar loss reaches the parameters")
            return None
        self.n_missing = 0
        loss = total / (self.n_sharing * self.loss_scale)
        floor = self._floor
        if loss < floor - 1e-6 * (1 + abs(floor)):
            self.go_without_losses(f"the loss is below {floor:g}")
        is_same = loss == self.last_loss and loss > floor and moves(optimizer)
        self.n_same = self.n_same + 1 if is_same else 0
        self.last_loss = loss
        if self.n_same >= _STEPS_OF_SAME_LOSS:
            self.go_without_losses("the loss is constant")
        return loss

    def _is_urgent(self, loss: float) -> bool:
        """Whether the rate is to go by the step that is about to be made."""
        if loss <= self._floor:  # nothing is left that a rate could be wrong for
            return False
        if self.field("n_steps") < _STEPS_AT_ONCE:
            return True
        return loss > _JUMP * (self.field("loss") + self._floor)

    def _await(
        self, optimizer: Any, stepping: list[int], loss: float, kept: float
    ) -> None:
        """Have the coming step tell its sums."""
        weights, most_weights = [], []
        highest = highest_rates(optimizer, self.references)
        for i in stepping:
            group = optimizer.param_groups[i]
            # What a step lowers the loss by goes by gradients before and after
            # clipping; without it, by the former alone.
            factor = self.known.factor(group) / kept
            weights.append(float(group["lr"]) * factor)
            caution = update_rules.caution(group)
            most_weights.append(highest[i] * factor * caution / kept)
        self.awaited, self.sums = (loss, weights, most_weights), []

    @property
    def wanted(self) -> list[float] | None:
        """The list that sums of the groups of this step belong into."""
        return None if self.awaited is None else self.sums

    @aside
    def tell(self, optimizer: Any, group: Any, scale: float) -> None:
        """Take the sum of a group that is about to step."""
        if self.known is None:  # since another group of this step
            return
        part = update_rules.descent(self.known, optimizer, group, scale)
        if part is None:
            self.leave_alone("gradients that are sparse, or of a class of their own")
        else:
            self.sums.append(part)

    def latest(self) -> tuple[float, float, float] | None:
        """Of the latest step: loss, descent and most descent."""
        return None if self.awaited is None else weighted(*self.awaited, self.sums)

    def _settle(self, may_grow: bool) -> None:
        """Let the rate go by the latest step that has a loss and all sums."""
        latest, self.awaited = self.latest(), None
        if latest is None or self.mode != "loss":
            return
        self.multiplier = _C.rate_next(
            self.numbers,
            *latest,
            self._floor,
            self.known.most_exponent,
            self._most_growth if may_grow else 0.0,
            self.known.falls_by_evidence,
        )

    def _by_distance(self, optimizer: Any, scale: float) -> None:
        """DoG, for steps along the gradient; other rates go back to the user's."""
        if self.known.numbers is not None:
            self.multiplier = 1.0
            return
        params = params_of(optimizer)
        if [b.shape for b in self.begin or ()] != [p.shape for p in params]:
            self.begin = [p.detach().clone() for p in params]
        squares = squares_by_rate = 0.0
        highest = highest_rates(optimizer, self.references)
        for group, lr in zip(optimizer.param_groups, highest, strict=True):
            part = update_rules.descent(self.known, optimizer, group, scale)
            if part is None:
                return
            squares += part
            squares_by_rate += part * lr * self.known.factor(group) ** 2
        self.multiplier = _C.rate_next_free(
            self.numbers,
            squares,
            update_rules.distance(params, self.begin),
            squares_by_rate / squares if squares > 0 else 0.0,
            self.known.most_exponent,
            self._most_growth,
        )

    @property
    def history(self) -> list[Moment]:
        """The latest steps."""
        return list(map(Moment._make, list(self.moments)))

    def field(self, name: str) -> float:
        """One of the numbers by its name."""
        return self.numbers[_index[name]]


def weighted(
    loss: float, weights: list[float], most_weights: list[float], sums: list[float]
) -> tuple[float, float, float] | None:
    """The loss, and the sums by both weights.

    None where sums are missing, or something is not finite: as of Adam's steps at a
    rate of zero, or by gradients that are infinite.
    """
    if not len(weights) == len(most_weights) == len(sums):
        return None
    descent = most_descent = 0.0
    for i, found in enumerate(sums):
        descent += weights[i] * found
        most_descent += most_weights[i] * found
    if not math.isfinite(loss + descent + most_descent):
        return None
    return loss, descent, most_descent


def _has_others() -> bool:
    """Whether other processes train with us: their multipliers would be others."""
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )

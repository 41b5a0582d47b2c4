"""One optimizer's rate: the losses since its last step, and what they make of it."""

from __future__ import annotations

import logging
import math
from array import array
from collections import deque
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakSet, ref

from torch import Tensor, distributed

from pai_torchacc._config import RateOptions
from pai_torchacc.adaptive_lr import update_rules
from pai_torchacc.adaptive_lr.clipping import Clipping, Versions, params_of
from pai_torchacc.adaptive_lr.watching import is_of_this_thread, watch

log = logging.getLogger("pai_torchacc")

_LONGEST_HISTORY = 1000
_VERSION = 2
"""Of saved states, whose numbers are those of csrc/ops/optim/learning_rate.h."""
_STEPS_WITHOUT_LOSS = 3
_STEPS_OF_SAME_LOSS = 20
_LOSSES_OF_OTHERS = 3
_MOST_PENDING = 4096
_HIGHEST = 1e10
"""More than any multiplier."""
_AGAINST_EACH_OTHER = "losses that other optimizers step by, and this one throws away"
_TURNS = "parameters that are frozen in turn with those of other optimizers"
_STEPS_AT_ONCE, _JUMP = 20, 1.25
"""Rates of the first steps, and of those whose loss is a quarter above the smoothed
one, go by the gradients that they are about to step by. Others go by those of the step
before, whose sums that step itself has taken. (All of them: no better, with a pass over
the gradients in every step. None: spikes are met a step late, and grow.)"""

_c: Any = None
_can_have_others = distributed.is_available()
_index: dict[str, int] = {}
"""Where each of a tuner's numbers stands."""


class Moment(NamedTuple):
    """A step, as the report lists it."""

    step: int
    loss: float | None
    multiplier: float
    lr: float


class Root:
    """A loss that backward was called on, and who has stepped by it."""

    __slots__ = ("used_by", "value")

    def __init__(self, value: float | None):
        self.value = value
        self.used_by: list[ReferenceType[Tuner]] = []


class Tuner:
    """By how much to multiply the rate of one optimizer."""

    def __init__(self, optimizer: Any, options: RateOptions):
        self._reference, self.optimizer = ref(self), ref(optimizer)
        self.options = options
        self._floor = options.floor or 0.0
        self._most_growth = math.log(options.max_growth)
        self.is_retired = self.is_idle = False
        self.n_passes_without = 0
        """Backward passes since the latest that reached it, or its latest step."""
        self.hooks: list[tuple[Any, Any]] = []
        """While it is idle: nodes that accumulate its gradients, hooks on them."""
        self.thread: object = None
        """The one whose backward passes reach these parameters, as far as is known."""
        self._begin_numbers()
        self.multiplier = 1.0
        self.moments: deque[tuple[Any, ...]] = deque(maxlen=_LONGEST_HISTORY)
        """What ``history`` makes moments of."""
        self.n_steps = 0
        self.loss_scale = 1.0
        self.is_stepping = False
        self.pending: list[Root] = []
        """Losses since the last step."""
        self._used: list[Root] = []
        """Those of the last step."""
        self._n_sharing = 1
        self.sums: list[float] = []
        """Of the groups that have stepped: gradient times direction."""
        self.begin: list[Any] | None = None
        """Where the parameters began, while there are no losses to go by."""
        self._awaited: tuple[float, list[float], list[float]] | None = None
        """A loss whose step is being made; what the sum of each group that steps
        counts, which is the rate that it has times the factor; and the same of the
        highest rate, with caution, and of gradients not clipped."""
        self._clipping = Clipping()
        self._references: list[float] = []
        self._beside: WeakSet[Tuner] | None = None
        """Whom backward passes have reached while these parameters were frozen."""
        self._n_of_others = self._n_turns = self._n_dropped = 0
        self._n_missing = self._n_same = 0
        self._last_loss: float | None = None
        known = update_rules.direction_of(optimizer)
        self.known = known if not isinstance(known, str) else None
        self.reason = known if isinstance(known, str) else None
        self.mode = "loss"
        if options.policy == "off":
            self.known, self.reason = None, "policy='off'"
        if self.known is None:
            self.mode = "off"
        elif options.policy == "loss_free":
            self.go_without_losses("policy='loss_free'")

    def _begin_numbers(self) -> None:
        self.numbers = array("d", [0.0] * len(_index))

    def retire(self) -> None:
        """Another one has taken its place, or none."""
        self.is_retired = True
        self.remove_hooks()

    def remove_hooks(self) -> None:
        """They have told, or are not to."""
        while self.hooks:
            self.hooks.pop()[1].remove()

    def note(self, root: Root, optimizer: Any) -> None:
        """A backward pass from this loss has reached the parameters."""
        self.pending.append(root)
        if len(self.pending) > _MOST_PENDING:  # of gradients that nobody steps by
            self.pending[:] = [Root(None)]
        if self.known is not None:
            self._clipping.note(_c, optimizer)

    def note_frozen(self, optimizer: Any, reached: list[Tuner]) -> None:
        """A backward pass has reached others, and not these parameters."""
        for group in optimizer.param_groups[:1]:
            for param in group["params"][:1]:
                if not param.requires_grad:
                    self._beside = self._beside or WeakSet()
                    self._beside.update(reached)

    def drop_thrown_away(self, optimizer: Any, versions: Versions) -> None:
        """Forget losses whose gradients are gone before a step.

        Where another optimizer has stepped by the same losses, again and again, the two
        work against each other, as generator and discriminator do: what such losses say
        is not progress.
        """
        if not self.pending or not (
            all(version is None for version in versions)
            or self._clipping.is_zero_now(_c, optimizer)
        ):
            return
        users = [user() for root in self.pending for user in root.used_by]
        others = {tuner for tuner in users if tuner is not None}
        if others and not self._n_dropped:  # since this one's own latest step
            self._n_of_others += 1
        self._n_dropped += 1
        if self._n_of_others >= _LOSSES_OF_OTHERS:
            for tuner in (self, *others):
                tuner.go_without_losses(_AGAINST_EACH_OTHER)
        self.pending.clear()
        self._clipping.forget()

    def go_without_losses(self, reason: str) -> None:
        """From now on, whatever losses come."""
        if self.mode != "loss":
            return
        self.mode, self.reason = "loss_free", reason
        if self.options.verbose:
            log.info("adaptive_lr goes without losses: %s", reason)

    def begin_step(self) -> list[Root]:
        """The losses that the coming step goes by."""
        pending, self.pending = self.pending, []
        self._n_dropped = 0
        if not is_of_this_thread(self):  # what has reached it may be others' losses
            pending = []
            watch(self)
        elif self.is_idle:
            watch(self)
        self.n_passes_without = 0
        if self._used:
            self._see_who_shares()
        for root in pending:
            root.used_by.append(self._reference)
        self._used = pending
        if self._beside:
            self._n_turns += 1
            if self._n_turns >= _LOSSES_OF_OTHERS:
                for tuner in (self, *self._beside):
                    tuner.go_without_losses(_TURNS)
            self._beside = None
        return pending

    def _see_who_shares(self) -> None:
        """The losses of the last step: by now others have stepped by them too."""
        n_sharing = len(self._used[0].used_by)
        for root in self._used:
            n_sharing = max(n_sharing, len(root.used_by))
        if n_sharing != self._n_sharing and self.field("n_steps") <= 1:
            self._begin_numbers()  # the first loss was counted as another share
        self._n_sharing = n_sharing
        if n_sharing > 1:
            self._n_of_others = 0

    def next(
        self, optimizer: Any, stepping: list[int], pending: list[Root], scale: float
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
        loss = self._loss(pending, optimizer)
        kept = self._clipping.kept(_c, optimizer, scale, self.loss_scale)
        self.loss_scale = 1.0
        self.n_steps += 1
        before = self.field("n_rollbacks") if self.options.verbose else 0.0
        is_urgent = loss is not None and self._is_urgent(loss)
        # Looked for where gradients are measured anyway: in the first steps and jumps.
        if is_urgent and any(p._backward_hooks for p in params_of(optimizer)):
            self.go_without_losses("hooks may change gradients, unseen by their losses")
        self._settle(may_grow=not is_urgent)
        if self.mode == "loss" and loss is not None:
            self._by_loss(optimizer, stepping, loss, scale, kept, is_urgent)
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
        self.multiplier, self._awaited = 1.0, None
        self._clipping.forget()

    def _loss(self, pending: list[Root], optimizer: Any) -> float | None:
        """The loss of this step, if it is one to go by."""
        total = 0.0 if pending else None
        for root in pending:
            total = None if total is None or root.value is None else total + root.value
        if total is None:
            self._n_missing += 1
            if self._n_missing >= _STEPS_WITHOUT_LOSS:
                self.go_without_losses("no scalar loss reaches the parameters")
            return None
        self._n_missing = 0
        loss = total / (self._n_sharing * self.loss_scale)
        floor = self._floor
        if loss < floor - 1e-6 * (1 + abs(floor)):
            self.go_without_losses(f"the loss is below {floor:g}")
        is_same = loss == self._last_loss and loss > floor and _moves(optimizer)
        self._n_same = self._n_same + 1 if is_same else 0
        self._last_loss = loss
        if self._n_same >= _STEPS_OF_SAME_LOSS:
            self.go_without_losses("the loss is constant")
        return loss

    def _is_urgent(self, loss: float) -> bool:
        """Whether the rate is to go by the step that is about to be made."""
        numbers = self.numbers
        if loss <= self._floor:  # nothing is left that a rate could be wrong for
            return False
        if numbers[_index["n_steps"]] < _STEPS_AT_ONCE:
            return True
        return loss > _JUMP * (numbers[_index["loss"]] + self._floor)

    def _by_loss(
        self,
        optimizer: Any,
        stepping: list[int],
        loss: float,
        scale: float,
        kept: float,
        is_urgent: bool,
    ) -> None:
        weights, most_weights = [], []
        highest = self._highest_rates(optimizer)
        for i in stepping:
            group = optimizer.param_groups[i]
            # What a step lowers the loss by goes by gradients before and after
            # clipping; without it, by the former alone.
            factor = self.known.factor(group) / kept
            weights.append(float(group["lr"]) * factor)
            caution = update_rules.caution(group)
            most_weights.append(highest[i] * factor * caution / kept)
        self._awaited, self.sums = (loss, weights, most_weights), []
        if is_urgent:
            for i in stepping:
                self.tell(optimizer, optimizer.param_groups[i], scale)
            self._settle(may_grow=True)

    @property
    def wanted(self) -> list[float] | None:
        """The list that sums of the groups of this step belong into."""
        return None if self._awaited is None else self.sums

    def tell(self, optimizer: Any, group: Any, scale: float) -> None:
        """Take the sum of a group that is about to step."""
        if self.known is None:  # since another group of this step
            return
        part = update_rules.descent(_c, self.known, optimizer, group, scale)
        if part is None:
            self.leave_alone("gradients that are sparse, or of a class of their own")
        else:
            self.sums.append(part)

    def _latest(self) -> tuple[float, float, float] | None:
        """Of the latest step: loss, descent and most descent."""
        # None of Adam's steps at a rate of zero, or by gradients that are infinite.
        return self._awaited and _c.rate_latest(*self._awaited, self.sums)

    def _settle(self, may_grow: bool) -> None:
        """Let the rate go by the latest step that has a loss and all sums."""
        latest, self._awaited = self._latest(), None
        if latest is None or self.mode != "loss":
            return
        self.multiplier = _c.rate_next(
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
        if self.begin is None or [b.shape for b in self.begin] != [
            p.shape for p in params
        ]:
            self.begin = [p.detach().clone() for p in params]
        squares = weighted = 0.0
        for group, lr in zip(
            optimizer.param_groups, self._highest_rates(optimizer), strict=True
        ):
            part = update_rules.descent(_c, self.known, optimizer, group, scale)
            if part is None:
                return
            squares += part
            weighted += part * lr * self.known.factor(group) ** 2
        self.multiplier = _c.rate_next_free(
            self.numbers,
            squares,
            update_rules.distance(params, self.begin),
            weighted / squares if squares > 0 else 0.0,
            self.known.most_exponent,
            self._most_growth,
        )

    def _highest_rates(self, optimizer: Any) -> list[float]:
        """The highest rate that each group has had, or a scheduler has announced."""
        groups, references = optimizer.param_groups, self._references
        if len(references) != len(groups):
            del references[len(groups) :]
            references += [0.0] * (len(groups) - len(references))
        for i, group in enumerate(groups):
            for key in ("lr", "initial_lr", "max_lr"):
                rate = group.get(key)
                if rate is not None and _is_rate(rate) and rate > references[i]:
                    references[i] = float(rate)
        return references

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs, of plain types and tensors."""
        if self._used:
            self._see_who_shares()
        return {
            "version": _VERSION,
            "numbers": list(self.numbers),
            "multiplier": self.multiplier,
            "mode": self.mode,
            "reason": self.reason,
            "references": list(self._references),
            "n_steps": self.n_steps,
            "counts": [
                self._n_missing,
                self._n_same,
                self._n_of_others,
                self._n_turns,
                self._n_sharing,
            ],
            "clips": self._clipping.is_seen,
            "last_loss": self._last_loss,
            "latest": self._latest(),
            "begin": None if self.begin is None else [t.clone() for t in self.begin],
        }

    def load(self, state: Any) -> None:
        """Go on from there; policies other than "auto" stay what they are.

        Raises
        ------
        ValueError
            This is no such state.
        """
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            raise ValueError("adaptive_lr: a state of another version")
        try:
            numbers = _finite(state["numbers"])
            (multiplier,) = _finite([state["multiplier"]])
            references = _finite(state["references"])
            loss, *descents = _finite(state["latest"] or []) or [0.0]
            n_steps, clips = int(state["n_steps"]), bool(state["clips"])
            n_missing, n_same, n_of_others, n_turns, n_sharing = map(
                int, state["counts"]
            )
            mode, reason = state["mode"], state["reason"]
            last_loss = state["last_loss"]
            last_loss = None if last_loss is None else float(last_loss)
            begin = state["begin"]
            begin = None if begin is None else [t.clone() for t in begin]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            raise ValueError(f"adaptive_lr: a damaged state: {e!r}") from None
        if (
            len(numbers) != len(self.numbers)
            or len(descents) not in (0, 2)
            or not 0 < multiplier < _HIGHEST
        ):
            raise ValueError("adaptive_lr: a state of other numbers")
        if self.known is None:
            return
        self.numbers = array("d", numbers)
        self.multiplier, self.begin = multiplier, begin
        self._references, self.n_steps = references, n_steps
        self._n_missing, self._n_same = n_missing, n_same
        self._n_of_others, self._n_turns = n_of_others, n_turns
        self._used, self._n_sharing = [], max(n_sharing, 1)
        self._last_loss, self._clipping = last_loss, Clipping()
        self._clipping.is_seen = clips
        self._awaited, self.sums = None, []
        if descents:
            self._awaited = loss, [1.0, 0.0], [0.0, 1.0]
            self.sums = descents
        self.pending.clear()
        self.moments.clear()
        if self.options.policy == "auto" and mode in ("loss", "loss_free"):
            self.mode, self.reason = mode, reason

    @property
    def history(self) -> list[Moment]:
        """The latest steps."""
        return list(map(Moment._make, list(self.moments)))

    def field(self, name: str) -> float:
        """One of the numbers by its name."""
        return self.numbers[_index[name]]


def _has_others() -> bool:
    """Whether other processes train with us: their multipliers would be others."""
    return (
        _can_have_others
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _is_rate(value: Any) -> bool:
    """Users may keep what they like under the names of schedulers."""
    if isinstance(value, (float, int)):
        return True
    if isinstance(value, Tensor):
        return value.numel() == 1
    return getattr(value, "ndim", 1) == 0


def _moves(optimizer: Any) -> bool:
    """Steps at a rate of zero, as warm-ups begin with, change no loss."""
    return any(float(group["lr"]) != 0 for group in optimizer.param_groups)


def _finite(numbers: Any) -> list[float]:
    found = [float(n) for n in numbers]
    if not all(map(math.isfinite, found)):
        raise ValueError("not finite")
    return found


def extension_is(c: Any) -> None:
    """Whose functions compute."""
    global _c  # noqa: PLW0603
    _c = c
    _index.update({name: i for i, name in enumerate(c.rate_fields())})

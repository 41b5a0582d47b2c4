"""The losses that an optimizer's coming step goes by, and who else has stepped by them.

What backward passes (``watching``) tell one optimizer. ``tuner`` makes a rate of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from weakref import ReferenceType, WeakSet, ref

from pai_torchacc.adaptive_lr.clipping import Clipping, Versions, params_of

PATIENCE = 8
"""Passes without it, or whose losses only others step by, after which an optimizer is
idle. Programs that train several models in turn come back to each of them sooner."""
_LOSSES_OF_OTHERS = 3
_MOST_PENDING = 4096
_AGAINST_EACH_OTHER = "losses that other optimizers step by, and this one throws away"
_TURNS = "parameters that are frozen in turn with those of other optimizers"


class Root:
    """A loss that backward was called on, and who has stepped by it."""

    __slots__ = ("used_by", "value")

    def __init__(self, value: float | None):
        self.value = value
        self.used_by: list[ReferenceType[Watched]] = []


class Watched(ABC):
    """An optimizer whose losses are watched."""

    def __init__(self, optimizer: Any):
        self._reference, self.optimizer = ref(self), ref(optimizer)
        self.is_served = True
        """Whether a rate is to be made of the losses."""
        self.is_retired = self.is_idle = False
        self.is_replaced = False  # by another one, that steps these parameters
        self.n_passes_without = 0
        """Backward passes since the latest that reached it, or its latest step."""
        self.hooks: list[tuple[Any, Any]] = []
        """While it is idle: nodes that accumulate its gradients, hooks on them."""
        self.thread: object = None
        """The one whose backward passes reach these parameters, as far as is known."""
        self.clipping = Clipping()
        self.roots: list[Root] = []
        self.used: list[Root] = []
        """Those of the last step."""
        self.n_sharing = 1
        self.n_of_others = self.n_turns = self._n_dropped = 0
        self._beside: WeakSet[Watched] | None = None
        """Whom backward passes have reached while these parameters were frozen."""

    @abstractmethod
    def go_without_losses(self, reason: str) -> None:
        """From now on, whatever losses come."""

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
        self.roots.append(root)
        if len(self.roots) > _MOST_PENDING:  # of gradients that nobody steps by
            self.roots[:] = [Root(None)]
        if self.is_served:
            self.clipping.note(optimizer)

    def note_frozen(self, optimizer: Any, reached: list[Watched]) -> None:
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
        if not self.roots or not (
            all(version is None for version in versions)
            or self.clipping.is_zero_now(optimizer)
        ):
            return
        users = [user() for root in self.roots for user in root.used_by]
        others = {other for other in users if other is not None}
        if others and not self._n_dropped:  # since this one's own latest step
            self.n_of_others += 1
        self._n_dropped += 1
        self._part_ways(self.n_of_others, others, _AGAINST_EACH_OTHER)
        if self._n_dropped > PATIENCE:
            found = [optimizer, *(other.optimizer() for other in others)]
            mine, *theirs = (set(map(id, params_of(o))) for o in found if o is not None)
            self.is_replaced = any(map(mine.issubset, theirs))
        self.roots.clear()
        self.clipping.forget()

    def _part_ways(self, n_times: int, others: Any, reason: str) -> None:
        if n_times >= _LOSSES_OF_OTHERS:
            for one in (self, *others):
                one.go_without_losses(reason)

    def use(self, roots: list[Root]) -> None:
        """A step is about to be made by these losses."""
        self.n_passes_without, self._n_dropped, self.is_replaced = 0, 0, False
        self.see_who_shares()
        for root in roots:
            root.used_by.append(self._reference)
        self.used = roots
        if self._beside:
            self.n_turns += 1
            self._part_ways(self.n_turns, self._beside, _TURNS)
            self._beside = None

    def see_who_shares(self) -> None:
        """The losses of the last step: by now others have stepped by them too."""
        if not self.used:
            return
        n_sharing = max(len(root.used_by) for root in self.used)
        if n_sharing != self.n_sharing:
            self.share_changes()
            self.n_sharing = n_sharing
        if n_sharing > 1:
            self.n_of_others = 0

    @abstractmethod
    def share_changes(self) -> None:
        """More, or fewer, have stepped by the last losses than by those before."""

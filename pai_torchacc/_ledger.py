"""The undo ledger: the only place that changes anything outside this package.

Every entry knows what it changed and what was there before. Undoing goes backwards and
restores by identity. A place that somebody else has changed after us is left to them:
what they kept of ours only forwards to stock by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class _Entry:
    """One attribute of a module or class, or one item of a dictionary."""

    def __init__(
        self,
        owner: Any,
        name: Any,
        value: Any,
        restore: Callable[[Any], Any] | None = None,
    ):
        self.owner, self.name, self.value, self.restore = owner, name, value, restore
        self.is_item = isinstance(owner, dict)
        self.original = self.now()

    def now(self) -> Any:
        content = self.owner if self.is_item else vars(self.owner)
        return content.get(self.name, _MISSING)

    def put(self, value: Any) -> None:
        if self.is_item:
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)

    def undo(self) -> str | None:
        now = self.now()
        if now is self.original:
            return None
        if now is not self.value:
            return f"{self} was changed by others; left as is"
        original = self.restore(self.original) if self.restore else self.original
        if original is not _MISSING:
            self.put(original)
        elif self.is_item:
            del self.owner[self.name]
        else:
            delattr(self.owner, self.name)
        return None

    def __str__(self) -> str:
        if self.is_item:
            return f"item {self.name!r}"
        owner = getattr(self.owner, "__qualname__", None)
        owner = owner or getattr(self.owner, "__name__", repr(self.owner))
        return f"{owner}.{self.name}"


class Ledger:
    """Changes to the process, and the way back.

    An entry is there before its change is made and until it is undone, so that an
    exception at any moment, a KeyboardInterrupt too, leaves nothing behind.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self.remarks: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    def set_attribute(
        self,
        owner: Any,
        name: str,
        value: Any,
        restore: Callable[[Any], Any] | None = None,
    ) -> None:
        """Set ``owner.name``.

        ``restore`` is given what was there and returns what to put back, where that has
        to differ; it is not called when the attribute has been changed by others.
        """
        self._do(_Entry(owner, name, value, restore))

    def has_set(self, owner: Any, name: str) -> bool:
        """Whether ``owner.name`` is what an entry has put there."""
        return any(
            (entry.owner, entry.name) == (owner, name) and entry.now() is entry.value
            for entry in self._entries
        )

    def repeat(self, owner: Any, name: str) -> None:
        """Set ``owner.name`` again where something has put back what was there."""
        for entry in self._entries:
            is_it = (entry.owner, entry.name) == (owner, name)
            if is_it and entry.now() is entry.original:
                entry.put(entry.value)

    def set_item(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Set ``mapping[key]``."""
        self._do(_Entry(mapping, key, value))

    def _do(self, entry: _Entry) -> None:
        self._entries.append(entry)
        entry.put(entry.value)

    def undo(self) -> None:
        """Take every change back, the latest first."""
        self.remarks = []
        while self._entries:
            remark = self._entries[-1].undo()
            del self._entries[-1]
            if remark:
                self.remarks.append(remark)

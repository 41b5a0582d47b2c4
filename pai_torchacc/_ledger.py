"""The undo ledger: the only place that changes anything outside this package.

Every entry knows what it changed and what was there before. Undoing goes backwards and
restores by identity. A place that somebody else has changed after us is left to them:
what they kept of ours only forwards to stock by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Attribute:
    """One attribute of a module or class."""

    def __init__(
        self, owner: Any, name: str, value: Any, restore: Callable[[Any], Any] | None
    ):
        self.owner, self.name, self.value, self.restore = owner, name, value, restore
        self.original = vars(owner).get(name, _MISSING)

    def do(self) -> None:
        setattr(self.owner, self.name, self.value)

    def undo(self) -> str | None:
        now = vars(self.owner).get(self.name, _MISSING)
        if now is self.original:
            return None
        if now is not self.value:
            return (
                f"{_name_of(self.owner)}.{self.name} was changed by others; left as is"
            )
        original = self.original
        if self.restore is not None:
            original = self.restore(original)
        if original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, original)
        return None


class _Item:
    """One item of a dictionary."""

    def __init__(self, mapping: dict[Any, Any], key: Any, value: Any):
        self.mapping, self.key, self.value = mapping, key, value
        self.original = mapping.get(key, _MISSING)

    def do(self) -> None:
        self.mapping[self.key] = self.value

    def undo(self) -> str | None:
        now = self.mapping.get(self.key, _MISSING)
        if now is self.original:
            return None
        if now is not self.value:
            return f"item {self.key!r} was changed by others; left as is"
        if self.original is _MISSING:
            del self.mapping[self.key]
        else:
            self.mapping[self.key] = self.original
        return None


class Ledger:
    """Changes to the process, and the way back.

    An entry is there before its change is made and until it is undone, so that an
    exception at any moment, a KeyboardInterrupt too, leaves nothing behind.
    """

    def __init__(self) -> None:
        self._entries: list[Attribute | _Item] = []
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
        self._do(Attribute(owner, name, value, restore))

    def has_set(self, owner: Any, name: str) -> bool:
        """Whether ``owner.name`` is what an entry has put there."""
        return any(
            isinstance(entry, Attribute)
            and (entry.owner, entry.name) == (owner, name)
            and vars(owner).get(name) is entry.value
            for entry in self._entries
        )

    def set_item(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Set ``mapping[key]``."""
        self._do(_Item(mapping, key, value))

    def _do(self, entry: Attribute | _Item) -> None:
        self._entries.append(entry)
        entry.do()

    def undo(self) -> None:
        """Take every change back, the latest first."""
        self.remarks = []
        while self._entries:
            remark = self._entries[-1].undo()
            del self._entries[-1]
            if remark:
                self.remarks.append(remark)


def _name_of(owner: Any) -> str:
    return getattr(owner, "__qualname__", None) or getattr(
        owner, "__name__", repr(owner)
    )

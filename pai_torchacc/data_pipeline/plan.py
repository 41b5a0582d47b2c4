"""A plan: what following a dataset's code for one batch has found, for the next ones.

It holds for as long as everything that was looked up is found again, and is what it
was. Then the same columns are computed for other indices, without a look at the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pai_torchacc.data_pipeline.interpreting import ABSENT, Interpreter
from pai_torchacc.data_pipeline.values import Column, Group, signature_of

_FIRST = ("__getitems__", "__getitem__")
"""What a fetcher looks for in a dataset's class."""


class Plan:
    """For batches of one dataset; of one iterator, as two must not share columns.

    Parameters
    ----------
    dataset : object
    run : Interpreter
        What was found, for a batch that ``collate`` has made of what it ``returned``.
    collate : callable
        Takes what was returned and the number of samples.
    """

    def __init__(
        self,
        dataset: Any,
        run: Interpreter,
        returned: Any,
        collate: Callable[[Any, int], Any],
    ):
        cls = type(dataset)
        self._dataset, self._bases = dataset, cls.__mro__
        self._code = cls.__getitem__.__code__
        self._default = torch.get_default_dtype()
        self._reads = [
            *(
                (b.__dict__, n, b.__dict__.get(n, ABSENT))
                for b in cls.__mro__
                for n in _FIRST
            ),
            (vars(dataset), _FIRST[0], ABSENT),
            *run.reads,
        ]
        self._containers = run.containers
        self._samples, self._returned, self._collate = run.samples, returned, collate
        self._columns = _as_they_are(returned)
        self._samples.forget()

    def holds(self, dataset: Any) -> bool:
        """Whether all that was found is there again."""
        if (
            dataset is not self._dataset
            or type(dataset).__mro__ is not self._bases
            or type(dataset).__getitem__.__code__ is not self._code
            or torch.get_default_dtype() is not self._default
        ):
            return False
        for found_in, name, value in self._reads:
            if found_in.get(name, ABSENT) is not value:
                return False
        for container, signature in self._containers:
            if signature_of(container) != signature:
                return False
        return True

    def batch(self, index: list[int]) -> Any:
        """The batch of these indices, in memory of its own."""
        self._samples.index = index
        try:
            if self._columns and len(index) > 1:
                return [column.data() for column in self._columns]
            return self._collate(self._returned, len(index))
        finally:
            self._samples.forget()


def _as_they_are(returned: Any) -> list[Column] | None:
    """The columns whose values are the batch, where that is all to be done with them.

    What has a sample more than one, has as many as anybody.
    """
    parts = returned.parts if isinstance(returned, Group) else []
    is_list = parts and returned.kind is not dict
    return (
        parts if is_list and all(getattr(p, "is_new", False) for p in parts) else None
    )

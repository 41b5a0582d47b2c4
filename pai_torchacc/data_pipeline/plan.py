"""A plan: what following a dataset's code for one batch has found, for the next ones.

It holds for as long as everything that was looked up is found again, and is what it
was. Then the same columns are computed for other indices, without a look at the code.
"""

from __future__ import annotations

from typing import Any

import torch

from pai_torchacc.data_pipeline.interpreting import ABSENT, Interpreter, class_attribute
from pai_torchacc.data_pipeline.values import signature_of


class Plan:
    """For batches of one dataset; of one iterator, as two must not share columns."""

    def __init__(self, dataset: Any, run: Interpreter, returned: Any):
        self._dataset, self._run, self.returned = dataset, run, returned
        self._function = class_attribute(type(dataset), "__getitem__")
        self._code = self._function.__code__
        self._default = torch.get_default_dtype()
        run.samples.forget()

    def begins(self, dataset: Any, index: list[int]) -> bool:
        """Whether it holds for this batch, whose columns can then be computed."""
        function = class_attribute(type(dataset), "__getitem__")
        holds = (
            dataset is self._dataset
            and function is self._function
            and function.__code__ is self._code
            and torch.get_default_dtype() is self._default
            and all(d.get(name, ABSENT) is value for d, name, value in self._run.reads)
            and all(signature_of(c) == s for c, s in self._run.containers)
        )
        if holds:
            self._run.samples.index = index
        return holds

    def end(self) -> None:
        """The batch's memory is its own."""
        self._run.samples.forget()

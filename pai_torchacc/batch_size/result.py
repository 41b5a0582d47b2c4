"""What the search found: a table, and a plot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from pai_torchacc._table import aligned
from pai_torchacc.batch_size.line import MemoryLine, agrees

_MIB = 2**20


@dataclass(frozen=True)
class Trial:
    """One batch size as measured.

    Attributes
    ----------
    batch : int
        Samples.
    seconds : float
        Of a step: the median of the faster half; of several trials the least.
    n_steps : int
        How many steps were timed.
    is_quiet : bool
        Whether its threads had the CPUs while these were timed.
    need_bytes, held_bytes : int
        At most, beyond what the process held before: storages in use and all other
        memory; and all that it held, an allocator's free memory among it.
    predicted_bytes : int or None
        What a line through three smaller batches had said of ``need_bytes``.
    leak_bytes : int
        By which memory grew in every step.
    trouble : str or None
        How memory was lacking; then the other fields mean nothing.
    """

    batch: int
    seconds: float
    n_steps: int
    is_quiet: bool
    need_bytes: int
    predicted_bytes: int | None
    held_bytes: int
    leak_bytes: int
    trouble: str | None

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return self.batch / self.seconds if self.seconds else 0.0

    @property
    def is_unpredicted(self) -> bool:
        """Whether memory was other than predicted."""
        if self.predicted_bytes is None or self.trouble:
            return False
        return not agrees(self.predicted_bytes, self.need_bytes)


@dataclass(frozen=True, repr=False)
class BatchSize:
    """What :func:`pai_torchacc.find_batch_size` found; as text, a table.

    Attributes
    ----------
    batch : int
        The batch to use, in each process.
    accumulation : int
        How many batches make one optimizer step; 1 unless ``keep_effective`` was given.
    world_size : int
        Processes that agreed on it; ``batch * accumulation * world_size`` is the
        effective batch.
    throughput : float
        Samples a second of this process with that batch. Where another process needed
        a smaller batch that was not tried here, with the nearest smaller one.
    limit_bytes : int
        What a step may need.
    memory : MemoryLine or None
        ``memory.predict(n)`` says what a batch of ``n`` needs; None where fewer than
        three sizes were tried.
    trials : tuple of Trial
        Every size that this process tried.
    remarks : tuple of str
        What was noticed.
    """

    batch: int
    accumulation: int
    world_size: int
    throughput: float
    limit_bytes: int
    memory: MemoryLine | None
    trials: tuple[Trial, ...]
    remarks: tuple[str, ...]

    @property
    def is_linear(self) -> bool:
        """Whether memory was as predicted at all sizes that were tried."""
        return not any(trial.is_unpredicted for trial in self.trials)

    def __repr__(self) -> str:
        return (
            f"<batch {self.batch}, accumulation {self.accumulation}, "
            f"{self.throughput:.5g} samples/s>"
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        steps = f" x {self.accumulation} steps" if self.accumulation > 1 else ""
        ranks = f" x {self.world_size} processes" if self.world_size > 1 else ""
        yield f"batch {self.batch}{steps}{ranks}: {self.throughput:.5g} samples/s"
        header = ("batch", "samples/s", "ms a step", "needs", "predicted", "held", "")
        rows = [header, *(self._row(trial) for trial in self.trials)]
        yield from aligned(rows, right=range(6))
        yield f"MiB; a step may need {self.limit_bytes / _MIB:.0f}"
        if self.memory:
            yield f"a step needs {self.memory}"
        yield from self.remarks

    def _row(self, trial: Trial) -> tuple[str, ...]:
        predicted = trial.predicted_bytes
        said = "" if predicted is None else f"{predicted / _MIB:.1f}"
        if trial.trouble:
            return (str(trial.batch), "", "", "", said, "", trial.trouble)
        return (
            str(trial.batch),
            f"{trial.throughput:.5g}",
            f"{trial.seconds * 1e3:.4g}",
            f"{trial.need_bytes / _MIB:.1f}",
            said,
            f"{trial.held_bytes / _MIB:.1f}",
            "chosen" if trial.batch == self.batch else "",
        )

    def plot(self, file: str | os.PathLike[str]) -> None:
        """Draw throughput and memory over the batch size into a file.

        Parameters
        ----------
        file : path
            Its ending says the format, as matplotlib knows it: png, svg, pdf ...

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        from pai_torchacc.batch_size import plot

        plot.draw(self, file)

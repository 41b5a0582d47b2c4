"""The batch size that is large enough for speed and small enough for memory.

Trials run in child processes, so that whatever they do to the program is lost with
them, and lack of memory ends a child and not the program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pai_torchacc.batch_size.result import BatchSize

_Batch = TypeVar("_Batch")


def find_batch_size(
    step: Callable[[_Batch], object],
    make_batch: Callable[[int], _Batch],
    budget: float = 0.9,
    keep_effective: int | None = None,
    *,
    smallest: int = 2,
    largest: int = 65536,
    seconds: float = 0.5,
    timeout: float = 300.0,
) -> BatchSize:
    """Find the smallest batch within 5 % of the best throughput that memory allows.

    Batches grow by powers of two, or along the divisors of ``keep_effective``, until
    throughput stops growing or memory ends. Each size is tried in a forked child
    process: a few steps for memory, then a few for time. The memory of three
    sizes, the largest so far that lie apart, gives a line ``fixed + per_sample *
    batch``. Sizes that it says are too large are not tried; between them and the
    largest that fitted, the line's own limit is, and where memory is no straight line,
    a bisection. Then sizes beside
    the chosen one and the fastest are tried; these two run once more, and others where
    other programs disturbed them.

    The program is as before: parameters, gradients, optimizers, random state, bit for
    bit, except in shared memory, which a fork does not copy. Garbage is collected once.
    OpenMP's idle workers of this thread end, and start again when needed. What
    ``step`` writes to files, it writes; what it prints to standard output is dropped.
    A trial runs in a copy of this thread, with its autocast, gradient and other modes.
    Other threads are missing in it.

    **Another batch is another training.** With ``keep_effective`` an optimizer step
    still sees ``keep_effective`` samples, where the program accumulates as the result
    says; batch normalization sees the batch. Without it nothing is kept.

    Parameters
    ----------
    step : callable
        ``step(batch)`` does what the program does with a batch: forward, or forward,
        backward and optimizer step. Its result is dropped. It may be any closure.
    make_batch : callable
        ``make_batch(n)`` gives a batch of ``n`` samples, as large as they can be where
        samples differ. Not timed, and called anew for each step.
    budget : float
        The share of memory that the process may take, above 0 and up to 1: of what it
        holds and what is available together, by the system, its control groups and
        ``ulimit``. Processes of one machine that train together share what is
        available. On CUDA: of what the device has free.
    keep_effective : int, optional
        Samples in one optimizer step, of all processes together:
        ``batch * accumulation * world_size == keep_effective``, exactly. Only such
        batches are tried.
    smallest, largest : int
        Where the search begins, and ends. Batch normalization refuses single samples.
    seconds : float
        How long steps of one size are timed, at least three steps after two that do not
        count; up to three times as long while other programs take the CPUs.
    timeout : float
        Seconds that one trial may take.

    Returns
    -------
    BatchSize
        With ``batch``, ``accumulation``, ``throughput``, the table ``trials`` (as text)
        and ``plot(file)``. Under ``torch.distributed`` the batch is the smallest of all
        processes, which all have to call this.

    Raises
    ------
    ValueError, TypeError
        An argument is wrong; no size from ``smallest`` to ``largest`` divides
        ``keep_effective``; or ``make_batch`` gives fewer samples than asked for, or
        always as many.
    MemoryError
        Not even the smallest size fits.
    TimeoutError
        A trial took longer than ``timeout``.
    RuntimeError
        A trial's process died other than for lack of memory; this process cannot be
        forked (CUDA is initialised, or this is no Linux); another process that trains
        with this one has failed.
    Exception
        What ``step`` or ``make_batch`` raise, other than for lack of memory, is raised
        here: the same class and message, the trial's traceback as its cause.

    Warns
    -----
    RuntimeWarning
        Memory grows with every step. The result says by how much.

    Notes
    -----
    A trial is refused memory beyond the budget (``RLIMIT_DATA``) and counts as too
    large then. Memory is counted by the memory pool, switched on in the child, without
    the free memory that the C library keeps; ``held_bytes`` has that as well. DDP
    modules run without communication in trials, and collectives raise. The CUDA part
    follows torch's documentation and has not run on a GPU yet.
    """
    from pai_torchacc.batch_size import finding, ranks

    arguments = finding.Arguments(
        step, make_batch, budget, keep_effective, smallest, largest, seconds, timeout
    )
    return ranks.agreed(partial(finding.find, arguments), keep_effective)

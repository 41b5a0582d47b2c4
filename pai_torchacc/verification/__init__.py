"""Numbers under contract: stock and accelerated results, both against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pai_torchacc import _host, _switch
from pai_torchacc._switch import disabled
from pai_torchacc._table import aligned
from pai_torchacc.calibration import BY_NAME
from pai_torchacc.fusion import tf32
from pai_torchacc.verification import ties
from pai_torchacc.verification.comparing import (
    Comparison,
    compare,
    compare_int8,
    equal,
    missing,
)
from pai_torchacc.verification.running import Results, is_alike, is_on_cuda, run
from pai_torchacc.verification.ties import Pools, Ties

NUDGES = 4
"""More runs of both, from numbers that differ in the last bit, where one run fails.

One shows too little of the error where a function has kinks: next to zero a ReLU's
input falls on either side by chance, and with it a gradient of stock's, or of ours.
"""
_HEADER = "tensor", "elements", "bits", "rms: stock", "ours", "max: stock", "ours", ""


@dataclass(repr=False)
class Verification:
    """What :func:`pai_torchacc.verify` found; true when all tensors pass, at least one.

    ``rows`` are the comparisons, ``numerics`` is the level they were held to,
    ``accelerated`` counts the calls that ran accelerated, ``float64_error`` says why
    there is no reference, or is None, and ``ties`` which positions max pooling picked
    otherwise than stock, or is None.
    """

    rows: list[Comparison]
    numerics: str
    accelerated: int
    float64_error: str | None
    ties: Ties | None = None

    def __bool__(self) -> bool:
        return bool(self.rows) and all(row.passes for row in self.rows)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        cells = [_HEADER] + [
            (
                r.name,
                str(r.n_elements),
                "equal" if r.is_equal else "differ",
                *(_number(v) for v in (r.stock_rms, r.our_rms, r.stock_max, r.our_max)),
                "; ".join(filter(None, (r.note, "" if r.passes else "FAILS"))),
            )
            for r in self.rows
        ]
        nothing = ["the model gives no tensors to compare"]
        lines = aligned(cells) if self.rows else nothing
        if self.float64_error:
            lines.append(f"no float64 reference: {self.float64_error}")
        if self.ties:
            lines.append(str(self.ties))
        verdict = "kept" if self else "BROKEN"
        calls = f"{self.accelerated} calls" if self.accelerated else "nothing ran"
        lines.append(f"contract {self.numerics!r}: {verdict}; {calls} accelerated")
        return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def verify(
    model: Callable[..., Any], inputs: tuple[Any, ...], backward: bool = True
) -> Verification:
    """See :func:`pai_torchacc.verify`."""
    state = RandomState()
    try:
        return _Verifying(state, partial(run, model, inputs, backward)).judge()
    finally:
        state.restore()


class RandomState:
    """Torch's generators, of CUDA devices too where the process uses them."""

    def __init__(self) -> None:
        self._of_cpu = torch.get_rng_state()
        is_used = torch.cuda.is_available() and torch.cuda.is_initialized()
        self._of_cuda = torch.cuda.get_rng_state_all() if is_used else []

    def restore(self) -> None:
        """Put them back to where they were."""
        torch.set_rng_state(self._of_cpu)
        if self._of_cuda:
            torch.cuda.set_rng_state_all(self._of_cuda)


class _Verifying:
    """The runs of one model that are compared."""

    def __init__(self, state: RandomState, run: Callable[..., Results]):
        self._state, self._run = state, run
        self._forced: list[torch.Tensor] | None = None
        """What stock's poolings are to pick."""

    def _ours(self, **options: Any) -> Results:
        self._state.restore()
        return self._run(options.pop("pools", Pools()), **options)

    def _stock(self, **options: Any) -> Results:
        with disabled(), _host.muted(), tf32.paused(torch):
            return self._ours(**{"pools": Pools(self._forced), **options})

    def _exact(self, pools: Pools) -> tuple[Results, str | None]:
        """The reference, or nothing and why the model cannot compute in float64."""
        try:
            return self._stock(pools=pools, dtype=torch.float64), None
        except Exception as error:  # whatever a model says that expects another dtype
            said = str(error).splitlines() or [""]
            return {}, f"{type(error).__name__}: {said[0]}"

    def judge(self) -> Verification:
        """Run it, and more often where one run does not keep the level."""
        numerics = _switch.current().numerics
        pools = Pools(), Pools(), Pools()
        stock = [self._stock(pools=pools[0])]
        before = _accelerated_calls()
        ours = [self._ours(pools=pools[1])]
        accelerated, rounded, int8 = (
            now - then for now, then in zip(_accelerated_calls(), before, strict=True)
        )
        exact, error = self._exact(pools[2])
        rows = list(missing(stock[0], ours[0]))
        if int8:
            rows += compare_int8(stock[0], ours[0])
            return Verification(rows, numerics, accelerated, error)
        broken = ties.find(*(p.found for p in pools), numerics)
        if broken and broken.n_ties and numerics != "exact":
            self._forced = broken.stock
            stock = [self._stock()]
            if exact:
                exact, _ = self._exact(Pools(broken.exact))
        rounds = rounded or (tf32.is_open() and is_on_cuda(ours[0].values()))
        is_lowered = rounds and numerics == "fast"
        lowered = list(self._lowered(stock[0])) if is_lowered else []
        compared = list(compare(stock, ours, lowered, exact, numerics))
        if (
            exact
            and numerics != "exact"
            and not all(row.passes for row in compared)
            and _is_repeated(ours[0], self._ours())
        ):
            ours += _more(self._ours, ours[0])
            stock += _more(self._stock, stock[0])
            compared = list(compare(stock, ours, lowered, exact, numerics))
        return Verification(rows + compared, numerics, accelerated, error, broken)

    def _lowered(self, first: Results) -> Iterator[Results]:
        """Stock's results in bfloat16, where autocast can run the model."""
        try:
            found = self._stock(lowered=True, pools=Pools())
        except Exception:  # autocast does not know every operator
            return
        if is_alike(found, first):
            yield found


def _accelerated_calls() -> tuple[int, int, int]:
    """So far, in all threads; those that rounded to bfloat16; those of int8 layers."""
    if (c := _host.compiled()) is None:
        return 0, 0, 0
    calls = {op: c.counters(op)[0] for op, _, _ in c.operators()}
    return sum(calls.values()), c.bf16_calls(), sum(calls[op] for op in BY_NAME)


def _is_repeated(first: Results, again: Results) -> bool:
    """Whether a run gave the same bits again; one that does not is excused nothing."""
    return first.keys() == again.keys() and all(
        equal(t, again[name]) for name, t in first.items()
    )


def _more(run: Callable[..., Results], first: Results) -> Iterator[Results]:
    """Runs from nudged numbers that gave tensors like the first run's."""
    for nudge in range(1, NUDGES + 1):
        try:
            found = run(nudge=nudge)
        except Exception:  # a model that looks at its numbers may refuse these
            continue
        if is_alike(found, first):
            yield found

"""The report's first lines: what was gained, and what stands in the way.

Times are estimates from the calibration table: stock's time for each call, as it was
measured when the table was made, on this machine or on another of its kind.
"""

from __future__ import annotations

from typing import Any

MOST_COSTS = 2

_TORCHS_OWN = {"copy"}
"""Operators that torch itself calls with arguments which the user did not choose."""

ADVICE = {
    "foreach": "leave foreach unset or False: our step is one call as well",
    "fused": "fused=True optimizers are torch's own kernels: leave fused unset",
    "capturable": "leave capturable=False on the CPU",
    "differentiable": "leave differentiable=False but for gradients through steps",
    "optimizer subclass": "a subclass of a torch optimizer keeps its own step",
    "optimizer state": "the optimizer's state has another dtype or layout than torch's",
    "sparse": "sparse gradients run stock; Embedding(sparse=False) gives dense ones",
    "autocast": "your torch.autocast decides; without it, enable(numerics='fast') "
    "multiplies in bfloat16 where that is faster",
    "lowered precision": "set_float32_matmul_precision('highest') gives products back",
    "dtype": "float32 is accelerated everywhere, bfloat16 and float64 in part",
    "layout": "call .contiguous() or use memory_format=torch.channels_last",
    "tensor subclass": "plain tensors are accelerated, subclasses decide themselves",
    "mode or transform active": "tracing, torch.func and dispatch modes run stock",
    "hooks": "hooks see what stock does; remove them where they are not needed",
    "gradient not supported": "second derivatives, gradients of this input run stock",
    "disabled in this thread": "you asked for it, by disabled() or exclude()",
    "excluded": "you asked for it, by include, exclude or ops",
    "numerics level": "enable(numerics='close') allows the kernels that this needs",
    "quarantined": "a kernel failed or differed and was taken out; please tell us",
    "overridden by others": "another library has replaced this operator",
    "profiler": "under a profiler modules and steps run stock",
    "overlapping memory": "give the optimizer tensors that share no memory",
    "no memory to work in": "kernels found no scratch memory",
    "device": "tensors on the CPU are accelerated, and for some operators on CUDA; "
    "all of a call's have to be on one device",
}
"""By reason: what a user can do. Reasons that are not here need nothing."""

_DEFAULT_US = 5.0
"""What a call is taken to cost of which no table knows."""


def of(content: dict[str, Any]) -> dict[str, Any]:
    """The verdict on the rest of a report's document.

    Returns
    -------
    dict
        ``calls`` and ``accelerated``; ``stock_ms``, ``served_ms`` and ``saved_ms`` by
        the table, calls that it does not know guessed; ``gain``, stock's time over ours
        for these calls, or None; ``measured_ms_saved`` where calls were timed, else
        None; ``costs``, each with ``op``, ``reason``, ``calls`` and ``advice``;
        ``uncounted``, operators whose calls go to stock uncounted, by reason; ``off``,
        why nothing is on.
    """
    ops = content["ops"]
    served, saved = (
        sum(_estimate(entry, part) for entry in ops.values())
        for part in ("served", "saved")
    )
    stock = served + sum(map(_forwarded_ms, ops.values()))
    measured = [e["ms_saved"] for e in ops.values() if e.get("ms_saved") is not None]
    return {
        "calls": sum(entry["calls"] for entry in ops.values()),
        "accelerated": sum(entry["accelerated"] for entry in ops.values()),
        "stock_ms": stock,
        "served_ms": served,
        "saved_ms": saved,
        "gain": stock / (stock - saved) if stock > saved else None,
        "measured_ms_saved": sum(measured) if measured else None,
        "costs": _costs(ops),
        "uncounted": _uncounted(content["switches"]),
        "off": _why_off(content["switches"]),
    }


def _estimate(entry: dict[str, Any], part: str) -> float:
    return entry.get("estimated_ms", {}).get(part, 0.0)


def _forwarded_ms(entry: dict[str, Any]) -> float:
    """Of calls that ran stock; those that no table knows are taken to be as others."""
    known = _estimate(entry, "forwarded")
    n_unknown = sum(entry["forwarded"].values())
    if known:
        n_unknown -= entry["forwarded"].get("not measured faster", 0)
    return known + 1e-3 * n_unknown * _call_us(entry)


def _uncounted(switches: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Those that the user's own options keep from being overridden."""
    found: dict[str, list[str]] = {}
    for entry in switches.values():
        for op, reason in entry.get("left_to_stock", {}).items():
            if reason in ADVICE:
                found.setdefault(reason, []).append(op)
    return found


def _why_off(switches: dict[str, dict[str, Any]]) -> str | None:
    if any(entry["active"] for entry in switches.values()):
        return None
    reasons = filter(None, (entry["reason"] for entry in switches.values()))
    return next(reasons, "call pai_torchacc.enable()")


def _costs(ops: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What to do something about, the dearest first."""
    found = []
    for op, entry in ops.items():
        if op in _TORCHS_OWN:
            continue
        each_us = _call_us(entry)
        for reason, calls in entry["forwarded"].items():
            if reason in ADVICE:
                found.append((calls * each_us, op, reason, calls))
    found.sort(reverse=True)
    return [
        {"op": op, "reason": reason, "calls": calls, "advice": ADVICE[reason]}
        for _, op, reason, calls in found[:MOST_COSTS]
    ]


def _call_us(entry: dict[str, Any]) -> float:
    """Stock's mean time for a call of an operator, as far as the table tells."""
    forwarded = _estimate(entry, "forwarded")
    ms, n = _estimate(entry, "served") + forwarded, entry["accelerated"]
    if forwarded:
        n += entry["forwarded"].get("not measured faster", 0)
    return 1e3 * ms / n if ms and n else _DEFAULT_US


def lines(verdict: dict[str, Any]) -> list[str]:
    """The same in words."""
    if verdict["off"] and not verdict["calls"]:
        return [f"nothing is accelerated: {verdict['off']}"]
    if not verdict["calls"]:
        return ["nothing to accelerate yet: no operator that we know was called"]
    share = verdict["accelerated"] / verdict["calls"]
    text = (
        f"accelerated: {verdict['accelerated']} of {verdict['calls']} calls "
        f"of operators that we know ({share:.0%})"
    )
    if verdict["stock_ms"]:
        of_time = verdict["served_ms"] / verdict["stock_ms"]
        text += f", {of_time:.0%} of their time"
    result = [text, *_gain(verdict)]
    result += [
        f"{cost['op']}: {cost['calls']} calls ran stock ({cost['reason']}): "
        f"{cost['advice']}"
        for cost in verdict["costs"]
    ]
    result += [
        f"not counted, since left to stock ({reason}): {', '.join(ops)}"
        for reason, ops in verdict["uncounted"].items()
    ]
    if verdict["off"]:
        result.append(f"now nothing is accelerated: {verdict['off']}")
    return result


def _gain(verdict: dict[str, Any]) -> list[str]:
    result = []
    is_measured = verdict["measured_ms_saved"] is not None
    if verdict["gain"] and verdict["served_ms"]:
        result.append(
            f"estimate from the calibration table: {verdict['saved_ms']:.1f} ms saved "
            f"of {verdict['stock_ms']:.1f} ms in these operators, which are "
            f"{verdict['gain']:.2f}x as fast"
            + ("" if is_measured else "; enable(verify=100) measures")
        )
    if is_measured:
        result.append(f"measured here: {verdict['measured_ms_saved']:.1f} ms saved")
    return result

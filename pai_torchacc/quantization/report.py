"""The report of a quantized model: bytes, layers, accuracy, speed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pai_torchacc import _switch
from pai_torchacc.quantization import conversion, quantizer, selection
from pai_torchacc.quantization.storage import Int8Module

SCHEMA = 1


@dataclass
class QuantizationReport:
    """What :func:`pai_torchacc.quantization_report` found; ``str()`` is a table."""

    content: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain lists, dicts and numbers."""
        return self.content

    def as_json(self) -> str:
        """Give the same as JSON text; what is infinite becomes null."""
        return json.dumps(_finite(self.content), indent=2)

    def __str__(self) -> str:
        return "\n".join(_lines(self.content))


def report(model: nn.Module) -> QuantizationReport:
    """See :func:`pai_torchacc.quantization_report`."""
    memo = conversion.notes.get(model)
    reasons = memo.reasons if memo else {}
    layers = []
    for name, module in model.named_modules():
        if isinstance(module, Int8Module):
            layers.append(_int8_entry(name, module))
        elif selection._has_weight(module):
            why = reasons.get(name) or selection.trouble(module) or "not quantized"
            layers.append(_float_entry(name, module, why))
    return QuantizationReport(
        {
            "schema": SCHEMA,
            "active": _switch.is_active("model_quantization"),
            "bytes": sizes(model),
            "undo": _undo(model),
            "sample": memo.comparison if memo else None,
            "layers": layers,
        }
    )


def _undo(model: nn.Module) -> str | None:
    """How exact ``dequantize_model`` would be."""
    modules = [m for _, m in selection.int8_modules(model)]
    if not modules:
        return None
    has_masters = all(m._int8.master is not None for m in modules)
    return "bit-exact" if has_masters else "dequantized"


def _int8_entry(name: str, module: Int8Module) -> dict[str, Any]:
    state = module._int8
    known = state.signal > 0 or state.noise > 0
    return {
        "name": name,
        "kind": selection.FLOAT_CLASSES[type(module)].__name__,
        "shape": list(state.shape),
        "state": "int8",
        "reason": None,
        "method": state.record.method,
        "buckets": dict(state.record.buckets),
        "weight_sqnr_db": (
            quantizer.sqnr_db(state.signal, state.noise) if known else None
        ),
        "output_sqnr_db": state.output_sqnr,
        "measured": {
            kind: {"float_s": a, "int8_s": b, "ratio": a / b}
            for kind, (a, b) in state.measured.items()
        },
    }


def _float_entry(name: str, module: nn.Module, why: str) -> dict[str, Any]:
    weights = [p for p in module._parameters.values() if p is not None]
    is_known = bool(weights) and not selection._is_lazy(weights[0])
    shape = list(weights[0].shape) if is_known else []
    return {
        "name": name,
        "kind": type(module).__name__,
        "shape": shape,
        "state": "float",
        "reason": why,
        "method": None,
        "buckets": {},
        "weight_sqnr_db": None,
        "output_sqnr_db": None,
        "measured": {},
    }


def sizes(model: nn.Module) -> dict[str, int]:
    """Bytes of the float model's state dict, of this one's, and in memory now."""
    seen: set[Any] = set()
    before = saved = memory = 0
    for module in model.modules():
        own = module._names() if isinstance(module, Int8Module) else ()
        persistent = [*module._parameters.values()]
        for key, buffer in module._buffers.items():
            if buffer is None:
                continue
            memory += _once(buffer, seen)
            if key not in own and key not in module._non_persistent_buffers_set:
                persistent.append(buffer)
        for tensor in persistent:
            if tensor is not None and not selection._is_lazy(tensor):
                size = _once(tensor, seen) if tensor is not None else 0
                is_buffer = any(tensor is b for b in module._buffers.values())
                if is_buffer:
                    size = _bytes(tensor) if ("b", id(tensor)) not in seen else 0
                    seen.add(("b", id(tensor)))
                    before, saved = before + size, saved + size
                else:
                    before, saved, memory = before + size, saved + size, memory + size
        if own:
            state = module._int8
            n_record = state.record.as_tensor().numel()
            tie = ("tie", id(state.tie))
            if state.tie is not None and tie in seen:
                saved += n_record
                continue
            seen.add(tie)
            n = math.prod(state.shape)
            before += 4 * n
            saved += n + 4 * state.shape[0] + n_record
    return {"float": before, "int8": saved, "memory": memory}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _once(tensor: Tensor, seen: set[Any]) -> int:
    if id(tensor) in seen:
        return 0
    seen.add(id(tensor))
    return _bytes(tensor)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _lines(content: dict[str, Any]) -> list[str]:
    n_bytes = content["bytes"]
    layers = content["layers"]
    n_int8 = sum(layer["state"] == "int8" for layer in layers)
    share = 100 * n_bytes["int8"] / n_bytes["float"] if n_bytes["float"] else 100.0
    lines = [
        f"{n_int8} of {len(layers)} layers are int8; state dict "
        f"{n_bytes['float'] / 2**20:.2f} -> {n_bytes['int8'] / 2**20:.2f} MiB "
        f"({share:.1f} %), in memory {n_bytes['memory'] / 2**20:.2f} MiB"
    ]
    if n_int8 and not content["active"]:
        lines.append("model_quantization is off: int8 layers run dequantized")
    if content["undo"]:
        lines.append(f"dequantize_model would be {content['undo']}")
    if content["sample"]:
        said = [
            f"{key} {value:.4g}"
            for key, value in content["sample"].items()
            if value is not None
        ]
        lines.append(f"on the sample: {', '.join(said)}")
    header = ("layer", "kind", "state", "weight dB", "output dB", "how, why")
    rows = [header, *(_row(layer) for layer in layers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines.append("")
    lines += [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return lines


def _row(layer: dict[str, Any]) -> tuple[str, ...]:
    floats = [kind for kind, how in layer["buckets"].items() if how == "float"]
    said = layer["reason"] or (f"float at {', '.join(floats)}" if floats else "")
    timed = [
        f"{kind} {times['ratio']:.2f}x" for kind, times in layer["measured"].items()
    ]
    return (
        layer["name"] or "(model)",
        layer["kind"],
        layer["state"],
        _db(layer["weight_sqnr_db"]),
        _db(layer["output_sqnr_db"]),
        "; ".join([said] * bool(said) + timed),
    )


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"

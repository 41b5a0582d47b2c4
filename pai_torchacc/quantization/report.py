"""The report of a quantized model: bytes, layers, accuracy, speed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pai_torchacc import _switch
from pai_torchacc._table import aligned
from pai_torchacc.quantization import conversion, on_cuda, selection
from pai_torchacc.quantization.quantizer import FP8
from pai_torchacc.quantization.storage import QuantizedModule

SCHEMA = 1

_UNDONE = {
    "bit-exact": "would give the float weights back, bit for bit",
    "dequantized": "would give rounded weights; keep_master=True keeps the exact ones",
}


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
    quantized = [module for _, module in selection.quantized_modules(model)]
    has_masters = all(module._int8.master is not None for module in quantized)
    undo = "bit-exact" if has_masters else "dequantized"
    layers = [
        _entry(name, module, reasons)
        for name, module in model.named_modules()
        if isinstance(module, QuantizedModule) or selection.has_weight(module)
    ]
    return QuantizationReport(
        {
            "schema": SCHEMA,
            "active": _switch.is_active("model_quantization"),
            "bytes": sizes(model),
            "undo": undo if quantized else None,
            "sample": memo.comparison if memo else None,
            "layers": layers,
        }
    )


def _entry(name: str, module: nn.Module, reasons: dict[str, str]) -> dict[str, Any]:
    """One layer, quantized or float."""
    entry: dict[str, Any] = {
        "name": name,
        "kind": getattr(module, "float_class", type(module)).__name__,
        "shape": [],
        "state": "float",
        "reason": None,
        "method": None,
        "buckets": {},
        "weight_sqnr_db": None,
        "output_sqnr_db": None,
        "measured": {},
    }
    if not isinstance(module, QuantizedModule):
        weights = [p for p in module._parameters.values() if p is not None]
        if weights and not is_lazy(weights[0]):
            entry["shape"] = list(weights[0].shape)
        why = reasons.get(name) or selection.trouble(module)
        return entry | {"reason": why or "not quantized"}
    state = module._int8
    if state.signal or state.noise:
        entry["weight_sqnr_db"] = state.weight_sqnr()
    return entry | {
        "shape": list(state.shape),
        "state": module.format.name,
        "reason": _why_dequantized(module),
        "method": state.record.method,
        "buckets": dict(state.record.buckets),
        "output_sqnr_db": state.output_sqnr,
        "measured": {
            kind: {"float_s": a, "quantized_s": b, "ratio": a / b}
            for kind, (a, b) in state.measured.items()
        },
    }


def _why_dequantized(module: QuantizedModule) -> str | None:
    """Why no kernel takes calls of a layer of fp8, as far as that is known."""
    if module.format != FP8:
        return None
    device = module._scale().device
    is_on_cuda = device.type == "cuda"
    why = on_cuda.reason(FP8, device) if is_on_cuda else "fp8 has kernels on CUDA only"
    return f"runs dequantized: {why}" if why else None


def sizes(model: nn.Module) -> dict[str, int]:
    """Bytes of the float model's state dict, of this one's, and in memory now."""
    found = {"float": 0, "quantized": 0, "memory": 0}
    seen: set[Any] = set()

    def count(tensor: Tensor | None, *where: str) -> None:
        if tensor is not None and not is_lazy(tensor):
            for key in where:
                if (key, id(tensor)) not in seen:
                    seen.add((key, id(tensor)))
                    found[key] += tensor.numel() * tensor.element_size()

    for module in model.modules():
        for parameter in module._parameters.values():
            count(parameter, *found)
        for key, buffer in module._buffers.items():
            is_saved = key not in module._non_persistent_buffers_set
            count(buffer, *(found if is_saved else ("memory",)))
        if isinstance(module, QuantizedModule):
            state = module._int8
            found["quantized"] += state.record.as_tensor().numel()
            weight = id(state.tie or state)
            if weight not in seen:
                seen.add(weight)
                n = math.prod(state.shape)
                found["float"] += state.dtype.itemsize * n
                found["quantized"] += n + 4 * state.shape[0]
    return found


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
    states = [layer["state"] for layer in layers if layer["state"] != "float"]
    names = " or ".join(sorted(set(states))) or "quantized"
    share = 100 * n_bytes["quantized"] / n_bytes["float"] if n_bytes["float"] else 100.0
    lines = [
        f"{len(states)} of {len(layers)} layers are {names}; state dict "
        f"{n_bytes['float'] / 2**20:.2f} -> {n_bytes['quantized'] / 2**20:.2f} MiB "
        f"({share:.1f} %), in memory {n_bytes['memory'] / 2**20:.2f} MiB"
    ]
    if states and not content["active"]:
        lines.append(f"model_quantization is off: {names} layers run dequantized")
    if content["undo"]:
        lines.append(f"dequantize_model() {_UNDONE[content['undo']]}")
    if content["sample"]:
        said = [
            f"{key} {value:.4g}"
            for key, value in content["sample"].items()
            if value is not None
        ]
        lines.append(f"on the sample: {', '.join(said)}")
    header = ("layer", "kind", "state", "weight dB", "output dB", "how, why")
    return [*lines, "", *aligned([header, *map(_row, layers)])]


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

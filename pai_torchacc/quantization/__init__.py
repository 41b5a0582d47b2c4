"""``model_quantization``: int8 and fp8 weights in place, undoable.

While it is on, quantized modules run the extension's kernels, float modules take
their checkpoints, and optimizers that hold what quantization took out of a model are
warned about. While it is off, quantized modules compute by the dequantized weight.
``dequantize_model`` makes a model float again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pai_torchacc import _host, calibration
from pai_torchacc._features import register
from pai_torchacc._ledger import Ledger
from pai_torchacc.calibration import in_use
from pai_torchacc.fusion import cuda, precision

if TYPE_CHECKING:
    from pai_torchacc._config import Config

OPERATORS = calibration.BY_NAME
"""Operators that this switch opens; the others are ``operator_fusion``'s."""

_NAME = "model_quantization"
_ledger = Ledger()


def install(c: Any, config: Config) -> str | None:
    """Switch on as ``config`` says; the reason when that cannot be."""
    from pai_torchacc.quantization import fused_modules, operators, states, training

    in_use.install(c, config)
    wanted = replace(config, ops=None).wanted(OPERATORS)  # ops are operator_fusion's
    for name in OPERATORS:
        c.set_gate(name, "" if name in wanted else "excluded")
    if not len(_ledger):
        states.install(_ledger)
    operators.install(c)
    training.install()
    provider = None if c.cuda_reason() else cuda.kernels()
    if provider and provider.reason(sys.modules["torch"]) is None:
        provider.install(c, _NAME)
    if _host.has_lean_paths():
        fused_modules.install(c)
    return None


def remove(c: Any) -> None:
    """Switch off; quantized modules run dequantized."""
    for name in OPERATORS:
        c.set_gate(name, "switched off")
    for name in ("operators", "fused_modules", "training"):
        module = sys.modules.get(f"{__name__}.{name}")
        if module is not None:
            module.remove()
    if provider := cuda.kernels():
        provider.remove(c, _NAME)
    _ledger.undo()


def status(c: Any) -> dict[str, Any]:
    """``training``: what is asked for, or why nothing comes of it."""
    from pai_torchacc import _switch

    training, table = _switch.current().training, in_use.table()
    if training is None or table is None:
        return {}
    return {"training": precision.reason(c, table) or training}


def about(config: Config) -> str:
    """For the log."""
    return f"int8{f', training {config.training}' if config.training else ''}"


def remarks() -> list[str]:
    """What others had patched when we took ours back; what layers on CUDA lack."""
    found = list(_ledger.remarks)
    c = _host.loaded()
    if c and (why := c.cublaslt_trouble()):
        found.append(f"quantized layers on CUDA run dequantized: {why}")
    return found


def document() -> dict[str, Any]:
    """``quantization``: of each quantized model, its layers by format and its bytes."""
    conversion = sys.modules.get(f"{__name__}.conversion")
    models = list(conversion.notes.keys()) if conversion else []
    return {"quantization": [_summary(model) for model in models]} if models else {}


def _summary(model: Any) -> dict[str, Any]:
    from pai_torchacc.quantization import report
    from pai_torchacc.quantization.quantizer import FORMATS

    content = report.report(model).as_dict()
    return {
        "model": type(model).__name__,
        "layers": len(content["layers"]),
        **{
            name: sum(layer["state"] == name for layer in content["layers"])
            for name in FORMATS
        },
        "bytes": content["bytes"],
        "sample": content["sample"],
    }


def _counted(entry: dict[str, Any]) -> int:
    """Layers that are quantized: a model has them in one format."""
    return int(entry["int8"] + entry["fp8"])


def _format(entry: dict[str, Any]) -> str:
    return next((name for name in ("int8", "fp8") if entry[name]), "quantized")


def lines(content: dict[str, Any]) -> list[str]:
    """One for each quantized model."""
    return [
        f"{entry['model']}: {_counted(entry)} of {entry['layers']} layers are "
        f"{_format(entry)}, "
        f"state dict {entry['bytes']['float'] / 2**20:.2f} -> "
        f"{entry['bytes']['quantized'] / 2**20:.2f} MiB "
        "(quantization_report(model) has all)"
        for entry in content.get("quantization", [])
    ]


def forget(config: Config) -> Config:
    """Without training in bfloat16, and what it has changed."""
    return precision.given_back(replace(config, training=None))


register(__name__, _NAME, rank=4)

"""Who convolves on CUDA, for the report: cuDNN, as torch's settings have it choose.

There is no kernel of ours for CUDA convolutions, so nothing is changed there; but these
settings decide speed and rounding, and a program that does not know them wonders.
"""

from __future__ import annotations

from typing import Any


def remarks(torch: Any) -> list[str]:
    """One line once the process uses CUDA; nothing before."""
    if not torch.cuda.is_initialized():
        return []
    cudnn = torch.backends.cudnn
    if not cudnn.is_available():
        return ["convolutions on CUDA: torch's own kernels, as there is no cuDNN"]
    if not cudnn.enabled:
        return ["convolutions on CUDA: torch's own kernels, as cuDNN is switched off"]
    how = [_choice(cudnn), _precision(cudnn)]
    if cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        how.append("deterministic algorithms only")
    return [f"convolutions on CUDA: cuDNN {cudnn.version()}, {', '.join(how)}"]


def _choice(cudnn: Any) -> str:
    if cudnn.benchmark:
        return "the fastest algorithm as timed at a shape's first call"
    return "the algorithm that its heuristics name (benchmark is off)"


def _precision(cudnn: Any) -> str:
    """What float32 is multiplied as; newer torch has a setting for this alone."""
    try:
        precision = cudnn.conv.fp32_precision
    except AttributeError:
        precision = "tf32" if cudnn.allow_tf32 else "ieee"
    return "float32 as TF32" if precision == "tf32" else "float32 as float32"

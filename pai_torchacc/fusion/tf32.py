"""Products of float32 on CUDA by TF32, at ``numerics="fast"``.

Tensor cores of NVIDIA's GPUs since Ampere multiply float32 numbers whose mantissas are
cut to 10 bits, and add up in float32. While ``operator_fusion`` is on at that level,
``torch.backends.cuda.matmul.allow_tf32`` is True, unless the program has said what it
wants; the switch puts it back. cuDNN's convolutions have a setting of their own, which
torch itself leaves on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_is_open = False


def is_open() -> bool:
    """Whether the setting is ours now."""
    return _is_open


def install(torch: Any) -> None:
    """Let torch multiply so, where nobody has said anything."""
    global _is_open  # noqa: PLW0603
    matmul = torch.backends.cuda.matmul
    if not _is_open and _setting(matmul) == (False, "none"):
        matmul.allow_tf32 = True
        _is_open = True


def remove(torch: Any) -> None:
    """As before, unless the program has set it since."""
    global _is_open  # noqa: PLW0603
    matmul = torch.backends.cuda.matmul
    if _is_open and _setting(matmul) == (True, "tf32"):
        matmul.allow_tf32 = False  # which says "ieee"
        matmul.fp32_precision = "none"
    _is_open = False


@contextlib.contextmanager
def paused(torch: Any) -> Iterator[None]:
    """As without us meanwhile, in the whole process: for runs of stock."""
    was_open = _is_open
    remove(torch)
    try:
        yield
    finally:
        if was_open:
            install(torch)


def remarks() -> list[str]:
    """One line for the report."""
    return ['float32 products on CUDA: by TF32 (numerics="fast")'] if _is_open else []


def _setting(matmul: Any) -> tuple[bool, str] | None:
    """By torch's old name and by its new one; None where those disagree."""
    try:
        return matmul.allow_tf32, matmul.fp32_precision
    except RuntimeError:  # set by the new name alone
        return None

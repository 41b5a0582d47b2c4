"""What the bits of elementwise operators depend on besides their arguments."""

from __future__ import annotations

from typing import Any

import torch

Setting = tuple[int, int, bool]
"""How many threads share the elements, whose vectors end elsewhere then; how the CPU
rounds and treats subnormal numbers; and whether oneDNN may be asked.
"""


def here(c: Any) -> Setting:
    """Tell this thread's."""
    return torch.get_num_threads(), c.float_mode(), torch._C._get_mkldnn_enabled()


def go_to(c: Any, wanted: Setting) -> None:
    """Make it this thread's; oneDNN's switch is the whole process's."""
    n_threads, float_mode, has_mkldnn = wanted
    if n_threads != torch.get_num_threads():
        torch.set_num_threads(n_threads)
    c.set_float_mode(float_mode)
    torch._C._set_mkldnn_enabled(has_mkldnn)

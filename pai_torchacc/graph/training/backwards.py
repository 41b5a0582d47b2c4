"""Which of autograd's graphs have been gone through in a training step."""

from __future__ import annotations

from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.graph.refusals import CannotPlan, where

NAME = "_engine_run_backward"
"""The function of torch's that all of its ways backward come to."""

_ENGINE = str(Path(torch.autograd.graph.__file__))


class Backwards:
    """Nodes of autograd's that ``backward()`` has been to."""

    def __init__(self) -> None:
        self._learnt: set[Any] = set()

    def look(self, frame: FrameType) -> bool:
        """Python calls a function: whether it was that one.

        Raises
        ------
        CannotPlan
            The graph is kept.
        """
        code = frame.f_code
        if code.co_name != NAME or code.co_filename != _ENGINE:
            return False
        self._look_at(**frame.f_locals)
        return True

    def have_begun(self) -> bool:
        """backward() was called."""
        return bool(self._learnt)

    def have_reached(self, tensor: Tensor) -> bool:
        """Autograd's graph behind a tensor has been gone through, and is gone."""
        reached, seen = [tensor.grad_fn], set()
        while reached:
            node = reached.pop()
            if node is None or not node.next_functions:
                return False  # a parameter's, which many graphs share
            if node in self._learnt or node in seen:
                continue
            seen.add(node)
            reached += [one for one, _ in node.next_functions if one is not None]
        return True

    def _look_at(self, t_outputs: Any, args: Any, **others: Any) -> None:
        """Of its roots; args are gradients, retain_graph, create_graph, and others."""
        reached = [tensor.grad_fn for tensor in t_outputs if isinstance(tensor, Tensor)]
        while reached:
            node = reached.pop()
            if node is not None and node not in self._learnt:
                self._learnt.add(node)
                reached += [next_node for next_node, _ in node.next_functions]
        if any(args[1:3]):
            text = "backward() keeps its graph, which a later call could want"
            raise CannotPlan(text, where())

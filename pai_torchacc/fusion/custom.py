"""Fusions of one's own: a function for modules that follow each other.

``register`` names classes of modules and a function that computes what they make of a
tensor in turn. Where they stand behind each other in ``nn.Sequential``, the function is
called instead, as long as ``operator_fusion`` is on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pai_torchacc import _host

if TYPE_CHECKING:
    from torch import Tensor, nn

Replacement = Callable[..., Any]
Sample = Callable[[], tuple[Sequence["nn.Module"], "Tensor"]]

MOST_CLASSES = 8

_registered: list[Fusion] = []
_is_installed = False


class Fusion:
    """A registered fusion, and what has come of it.

    Attributes
    ----------
    name : str
        The replacement's.
    pattern : tuple of type
        Classes of modules.
    gradients : bool
        Whether it is called where a gradient is asked for.
    calls : int
        How many calls it has computed.
    given_back : int
        How many it has not taken: it gave ``NotImplemented``, or a gradient was asked
        for that it does not have.
    """

    def __init__(
        self, pattern: tuple[type, ...], replacement: Replacement, gradients: bool
    ) -> None:
        self.name = getattr(replacement, "__qualname__", repr(replacement))
        self.pattern = pattern
        self.gradients = gradients
        self.calls = 0
        self.given_back = 0
        self._replacement = replacement

    def __repr__(self) -> str:
        classes = ", ".join(cls.__name__ for cls in self.pattern)
        return f"<fusion {self.name} of {classes}: {self.calls} calls>"

    def remove(self) -> None:
        """Have the modules called again."""
        if self in _registered:
            _registered.remove(self)
            _tell()

    def _call(self, *modules_and_x: Any) -> Any:
        """What the extension calls."""
        from torch import Tensor

        x = modules_and_x[-1]
        if not isinstance(x, Tensor) or not self._takes(modules_and_x):
            self.given_back += 1
            return NotImplemented
        result = self._replacement(*modules_and_x)
        if result is NotImplemented:
            self.given_back += 1
        elif not isinstance(result, Tensor):
            raise TypeError(f"{self.name} gave {type(result).__name__}, not a tensor")
        else:
            self.calls += 1
        return result

    def _takes(self, modules_and_x: tuple[Any, ...]) -> bool:
        import torch

        if self.gradients or not torch.is_grad_enabled():
            return True
        *modules, x = modules_and_x
        return not x.requires_grad and not any(
            p.requires_grad for module in modules for p in module.parameters()
        )


def register(
    pattern: Iterable[type[nn.Module]],
    replacement: Replacement,
    sample: Sample,
    gradients: bool = True,
) -> Fusion:
    """Have modules that follow each other in ``nn.Sequential`` computed by a function.

    It is called while ``operator_fusion`` is on and only where calling the modules
    would be calling their ``forward``: not with hooks on one of them, under
    ``torch.jit.trace``, modes or a Python debugger. Fusions registered first are tried
    first, and before those of this package. The modules are given as they are, so that
    nothing that the function reads of them can be stale.

    Parameters
    ----------
    pattern : iterable of type
        One to eight classes of modules, which match exactly, not by subclasses.
    replacement : callable
        ``replacement(*modules, x)`` gives the tensor that the modules make of ``x`` in
        turn, or ``NotImplemented`` to have them called. Not in place.
    sample : callable
        ``sample()`` gives such modules and a floating-point ``x``. The function is
        checked on them here, in the mode, training or not, that they are in.
    gradients : bool
        Whether the function can be differentiated; else it is not called where a
        gradient is asked for. Those of ``x`` and of parameters are checked, too.

    Returns
    -------
    Fusion
        Counts its calls; its ``remove()`` undoes this.

    Raises
    ------
    ValueError
        The sample does not fit the pattern, or the function's numbers, sizes, dtype or
        gradients are not those of the modules: errors against float64 are held to level
        close, a multiple of the modules' own (``docs/numerics.md``).
    TypeError
        The pattern has something else than classes of modules, or the function gives no
        tensor.
    """
    from torch import nn

    classes = tuple(pattern)
    if not all(isinstance(c, type) and issubclass(c, nn.Module) for c in classes):
        raise TypeError("a pattern has classes of modules")
    if not 1 <= len(classes) <= MOST_CLASSES:
        raise ValueError(f"a pattern has one to {MOST_CLASSES} classes")
    fusion = Fusion(classes, replacement, gradients)
    _check(fusion, *sample())
    _registered.append(fusion)
    _tell()
    return fusion


def _check(fusion: Fusion, modules: Sequence[nn.Module], x: Tensor) -> None:
    from pai_torchacc.verification.comparing import compare

    if tuple(type(m) for m in modules) != fusion.pattern:
        raise ValueError("the sample's modules are of other classes than the pattern")
    stock = _results(modules, x, _in_turn, fusion.gradients)
    ours = _results(modules, x, fusion._replacement, fusion.gradients)
    wide = [copy.deepcopy(m).double() for m in modules]
    exact = _results(wide, x.double(), _in_turn, fusion.gradients)
    if stock.keys() != ours.keys():
        missing = ", ".join(sorted(stock.keys() ^ ours.keys()))
        raise ValueError(f"{fusion.name}: {missing}: of one side alone")
    for found in compare([stock], [ours], [], exact, "close"):
        if not found.passes:
            raise ValueError(
                f"{fusion.name}: {found.name} is not what the modules give"
                f"{found.note and ': ' + found.note}"
            )


def _in_turn(*modules_and_x: Any) -> Tensor:
    *modules, x = modules_and_x
    for module in modules:
        x = module(x)
    return x


def _results(
    modules: Sequence[nn.Module], x: Tensor, call: Replacement, gradients: bool
) -> dict[str, Tensor]:
    """What a call gives, on copies of the modules, and its gradients, by name."""
    import torch
    from torch import Tensor

    copies = [copy.deepcopy(m) for m in modules]
    leaf = x.detach().clone().requires_grad_(gradients)
    before = leaf.detach().clone()
    with (
        torch.set_grad_enabled(gradients),
        torch.random.fork_rng(devices=[]),
        _host.muted(),
    ):
        torch.default_generator.manual_seed(0)
        result = call(*copies, leaf)
        if not isinstance(result, Tensor):
            raise TypeError(f"a tensor is expected, not {type(result).__name__}")
        found = {"the result": result.detach()}
        if not torch.equal(leaf.detach(), before):
            raise ValueError("the function writes to its input")
        if result.requires_grad:
            weights = torch.linspace(0.5, 1.5, result.numel()).to(result)
            result.backward(weights.reshape(result.shape))
    named = [("x", leaf)]
    for i, module in enumerate(copies):
        named += [(f"module {i}'s {n}", p) for n, p in module.named_parameters()]
        found |= {f"module {i}'s {n}": b for n, b in module.named_buffers()}
    return found | {
        f"the gradient of {n}": p.grad for n, p in named if p.grad is not None
    }


def install(c: Any) -> None:
    """Have the extension try what is registered."""
    global _is_installed  # noqa: PLW0603
    _is_installed = True
    c.custom_chains_install([(f.pattern, f._call) for f in _registered])


def remove(c: Any) -> None:
    """Have it try nothing."""
    global _is_installed  # noqa: PLW0603
    _is_installed = False
    c.custom_chains_install([])


def _tell() -> None:
    if _is_installed:
        install(_host.load())


def remarks() -> list[str]:
    """What has come of each."""
    return [
        f"fusion {f.name}: {f.calls} calls, {f.given_back} given back"
        for f in _registered
    ]

"""The accuracy guard: a model run on a sample, in float and quantized."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from pai_torchacc.quantization import quantizer
from pai_torchacc.quantization.quantizer import version_of

Call = tuple[tuple[Any, ...], dict[str, Any]]

_LEAST_DIMS = 2
_MOST_NOISE = 300


def calls_of(sample: Any) -> list[Call]:
    """The calls that a sample stands for; TypeError or ValueError where it is none.

    A tensor is one argument, a dict keyword arguments, a tuple or list positional ones;
    any other iterable, and a tuple or list of nothing but these, are several calls.
    """
    if isinstance(sample, (str, bytes)) or not isinstance(sample, Iterable):
        raise TypeError(
            "sample is a tensor, a tuple of arguments, a dict of keyword arguments, or "
            f"an iterable of these, not {type(sample).__name__}"
        )
    is_one = isinstance(sample, (Tensor, dict))
    if isinstance(sample, (tuple, list)):
        is_one = not all(isinstance(item, (tuple, list, dict)) for item in sample)
    found = [_call(item) for item in ([sample] if is_one else sample)]
    if not found:
        raise ValueError("sample is empty")
    return found


def _call(item: Any) -> Call:
    if isinstance(item, dict):
        return (), item
    if isinstance(item, (tuple, list)):
        return tuple(item), {}
    return (item,), {}


def undisturbed(model: nn.Module, work: Callable[[], None]) -> None:
    """Work in eval mode, without gradients; flags, buffers, randomness as before.

    Buffers are those of float modules; quantized ones do not change theirs.
    """
    buffers = [(b, b.detach().clone(), version_of(b)) for b in model.buffers()]
    modules = [(m, m.training, dict(m._buffers)) for m in model.modules()]
    randomness = torch.get_rng_state()
    devices = {t.device for t in (*model.parameters(), *model.buffers()) if t.is_cuda}
    on_devices = [(device, torch.cuda.get_rng_state(device)) for device in devices]

    def restore() -> None:
        torch.set_rng_state(randomness)
        for device, state in on_devices:
            torch.cuda.set_rng_state(state, device)
        with quantizer.ordinary():
            for buffer, before, version in buffers:
                if version_of(buffer) != version:
                    buffer.copy_(before)
        for module, flag, places in modules:
            held = module._buffers
            held.update({name: places[name] for name in held if name in places})
            module.__dict__["training"] = flag

    try:
        with quantizer.ordinary():
            model.eval()
            work()
    finally:
        try:
            restore()
        finally:  # also where an interrupt came while the first went on
            restore()


def outputs(model: nn.Module, calls: list[Call]) -> list[Tensor]:
    """All float tensors that the model gives, call after call, or ValueError."""
    found: list[Tensor] = []
    for args, kwargs in calls:
        try:
            result = model(*args, **kwargs)
        except Exception as error:
            kind = type(error).__name__
            raise ValueError(
                f"sample: the model does not take it: {kind}: {error}"
            ) from error
        found += _floats(result)
    if not found:
        raise ValueError("sample: the model gives no float tensors for it")
    return [t.detach().clone() for t in found]


def _floats(result: Any) -> list[Tensor]:
    if not isinstance(result, (Tensor, tuple, list, dict)) and hasattr(
        result, "__dict__"
    ):
        result = dict(vars(result))
    leaves = _pytree.tree_leaves(result)
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


@dataclass
class Comparison:
    """How far the quantized model's outputs are from the float model's."""

    agreement: float | None
    """Share of positions whose largest class is the same; None without classes."""
    kl_divergence: float | None
    """Mean Kullback-Leibler divergence of the softmax, in nats."""
    output_sqnr_db: float

    def badness(self) -> float:
        """What the guard limits: disagreement, else noise in units of the signal."""
        if self.agreement is not None:
            return 1 - self.agreement
        return 10 ** min(-self.output_sqnr_db / 10, _MOST_NOISE)


def classes_dim(output: Tensor) -> int | None:
    """The dimension of classes: the last, or 1 for images; None where there is none."""
    if output.dim() < _LEAST_DIMS:
        return None
    dim = 1 if output.dim() > _LEAST_DIMS + 1 else output.dim() - 1
    return dim if output.shape[dim] > 1 else None


def compared(stock: list[Tensor], ours: list[Tensor]) -> Comparison:
    """Compare outputs in pairs; ValueError where sizes are others when repeated."""
    if [t.shape for t in stock] != [t.shape for t in ours]:
        raise ValueError(
            "sample: the model gives outputs of other sizes when it is repeated"
        )
    same = positions = 0
    divergence = signal = noise = 0.0
    for a, b in zip(stock, ours, strict=True):
        signal_here, noise_here = power(a, b)
        signal, noise = signal + signal_here, noise + noise_here
        dim = classes_dim(a)
        if dim is None or not a.numel():
            continue
        same += int((a.argmax(dim) == b.argmax(dim)).sum())
        positions += a.numel() // a.shape[dim]
        log_p, log_q = (t.double().log_softmax(dim) for t in (a, b))
        terms = (log_p.exp() * (log_p - log_q)).nan_to_num(0, 0, 0)
        divergence += float(terms.sum())
    return Comparison(
        same / positions if positions else None,
        divergence / positions if positions else None,
        quantizer.sqnr_db(signal, noise),
    )


def power(stock: Tensor, ours: Tensor) -> tuple[float, float]:
    """Sums of squares: of stock's finite values, and of the differences there."""
    a, b = stock.double(), ours.double()
    finite = torch.isfinite(a)
    a = torch.where(finite, a, 0.0)
    difference = torch.where(finite, b, 0.0) - a
    return float(a.square().sum()), float(difference.nan_to_num(1e300).square().sum())


class Watch:
    """Hooks that compute each layer's int8 copied on what the float layer gets."""

    def __init__(self, copies: dict[nn.Module, nn.Module]):
        self._powers: dict[nn.Module, list[float]] = {}
        self.shapes: dict[nn.Module, tuple[int, ...]] = {}
        self._hooks = {module: self._hook(copied) for module, copied in copies.items()}

    def open(self) -> None:
        """Hook all layers."""
        for module, hook in self._hooks.items():
            module.register_forward_hook(hook, with_kwargs=True)

    def _hook(self, copied: nn.Module) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            ours = copied(*args, **kwargs)
            held = self._powers.setdefault(module, [0.0, 0.0])
            for a, b in zip(_floats(output), _floats(ours), strict=True):
                signal, noise = power(a, b)
                held[0], held[1] = held[0] + signal, held[1] + noise
            if args and isinstance(args[0], Tensor):
                self.shapes.setdefault(module, tuple(args[0].shape))

        return hook

    def sqnr(self, module: nn.Module) -> float | None:
        """Of a layer's output in dB; None where it was not called."""
        held = self._powers.get(module)
        return None if held is None else quantizer.sqnr_db(*held)

    def close(self) -> None:
        """Take the hooks away, also those of an :meth:`open` that was interrupted."""
        for module, ours in self._hooks.items():
            for key, hook in list(module._forward_hooks.items()):
                if hook is ours:
                    module._forward_hooks_with_kwargs.pop(key, None)
                    module._forward_hooks.pop(key, None)

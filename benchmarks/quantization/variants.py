"""How a module is quantized: by us, and by others as their users would.

Others are in benchmarks/peers-requirements.txt; what is not installed is left out. Each
takes a module of its own and a sample, and gives back a module from float32 to float32.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.quantization.cases import CONVOLUTION
from pai_torchacc.commands.usage import UsageError

OURS = "ptac"


def quantize(module: nn.Module, method: str | None = None) -> nn.Module:
    """Quantize in place by ``ptac.quantize_model``."""
    return ptac.quantize_model(module, **({"method": method} if method else {}))


def check(method: str | None) -> None:
    """Raise UsageError where models cannot be quantized, or not so."""
    if not hasattr(ptac, "quantize_model"):
        raise UsageError("this version cannot quantize models")
    try:
        quantize(nn.Linear(8, 8).eval(), method)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    finally:
        ptac.disable()


def on() -> None:
    """Let quantized modules run quantized; all else is stock."""
    ptac.disable()
    ptac.enable_model_quantization()


@dataclass(frozen=True)
class Peer:
    """A rival: where it comes from, what it does to a module, whether convolutions too.

    ``change`` gets a container whose only child is the module, which it may replace.
    """

    name: str
    package: str
    change: Callable[[nn.Sequential, Tensor], None]
    takes_convolutions: bool = False

    def is_meant_for(self, part: str) -> bool:
        """Whether it does anything to modules of this part."""
        return part != CONVOLUTION or self.takes_convolutions

    def quantize(self, module: nn.Module, sample: Tensor) -> nn.Module:
        """Change a module, which is not to be used afterwards."""
        holder = nn.Sequential(module).eval()
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            self.change(holder, sample)
        return holder[0]


def _dynamic(holder: nn.Sequential, _: Tensor) -> None:
    torch.ao.quantization.quantize_dynamic(
        holder, {nn.Linear}, dtype=torch.qint8, inplace=True
    )


def _dynamic_per_channel(holder: nn.Sequential, _: Tensor) -> None:
    config = torch.ao.quantization.per_channel_dynamic_qconfig
    torch.ao.quantization.quantize_dynamic(holder, {nn.Linear: config}, inplace=True)


class _Bfloat16(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.bfloat16() if x.is_floating_point() else x).float()


def _bfloat16(holder: nn.Sequential, _: Tensor) -> None:
    holder[0] = _Bfloat16(holder[0])


def _torchao(config: str) -> Callable[[nn.Sequential, Tensor], None]:
    def change(holder: nn.Sequential, _: Tensor) -> None:
        from torchao import quantization

        quantization.quantize_(holder, getattr(quantization, config)())

    return change


def _bitsandbytes(holder: nn.Sequential, _: Tensor) -> None:
    from bitsandbytes.nn import Linear8bitLt

    # It warns at each call, and the time that takes is not its kernels'.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    for parent in list(holder.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                layer = Linear8bitLt(
                    child.in_features,
                    child.out_features,
                    bias=child.bias is not None,
                    has_fp16_weights=False,
                    threshold=0.0,
                )
                layer.load_state_dict(child.state_dict())
                setattr(parent, name, layer.to("cpu").eval())


def _quanto(holder: nn.Sequential, sample: Tensor) -> None:
    from optimum import quanto

    quanto.quantize(holder, weights=quanto.qint8, activations=quanto.qint8)
    with quanto.Calibration():
        holder(sample)
    quanto.freeze(holder)


PEERS = (
    Peer("quantize_dynamic", "torch", _dynamic),
    Peer("quantize_dynamic, per channel", "torch", _dynamic_per_channel),
    Peer("bfloat16", "torch", _bfloat16, takes_convolutions=True),
    Peer("torchao W8A8", "torchao", _torchao("Int8DynamicActivationInt8WeightConfig")),
    Peer("torchao W8", "torchao", _torchao("Int8WeightOnlyConfig")),
    Peer("bitsandbytes", "bitsandbytes", _bitsandbytes),
    Peer("quanto W8A8", "optimum-quanto", _quanto, takes_convolutions=True),
)


def versions() -> dict[str, str | None]:
    """Versions of the packages that peers are in; None for what is not installed."""
    found: dict[str, str | None] = {}
    for package in dict.fromkeys(peer.package for peer in PEERS):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def installed() -> tuple[Peer, ...]:
    """The peers that can be measured here."""
    here = versions()
    return tuple(peer for peer in PEERS if here[peer.package])

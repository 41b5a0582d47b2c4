"""Whether this torch's own updates of optimizers give the bits that ours give.

They run beside ours on a few numbers, once a process: the loop over tensors, and, where
a class has them, ``foreach`` and ``fused``. Autograd has to be told of the same writes:
torch's fused updates tell it of none but the counts'.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

_ALL = {"lr": 0.003, "weight_decay": 0.01, "maximize": False}
_ADAM = {**_ALL, "eps": 1e-8, "amsgrad": True, "beta1": 0.9, "beta2": 0.999}
_NADAM = {**_ALL, "eps": 1e-8, "momentum_decay": 4e-3, "beta1": 0.9, "beta2": 0.999}


@dataclass
class _Proof:
    """Of an operator: torch's module, the options, and what a state has."""

    module: str
    options: dict[str, Any]
    tensors: tuple[str, ...]
    """In the order in which torch's update takes them, behind the gradients."""
    has_scale: bool = False
    """Whether the update takes the gradients' scale, and whether one is infinite."""
    off: tuple[str, ...] = ("has_complex", "capturable", "differentiable")
    ways: tuple[str, ...] = ("foreach", "fused")


_PROOFS = {
    "sgd_step": _Proof(
        "sgd",
        {**_ALL, "momentum": 0.9, "dampening": 0.1, "nesterov": False},
        ("momentum_buffer",),
        has_scale=True,
        off=("has_sparse_grad",),
    ),
    "adam_step": _Proof(
        "adam",
        {**_ADAM, "decoupled_weight_decay": False},
        ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"),
        has_scale=True,
    ),
    "adamw_step": _Proof(
        "adam",
        {**_ADAM, "decoupled_weight_decay": True},
        ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"),
        has_scale=True,
    ),
    "adadelta_step": _Proof(
        "adadelta",
        {**_ALL, "rho": 0.9, "eps": 1e-6},
        ("square_avg", "acc_delta", "step"),
        ways=("foreach",),
    ),
    "rmsprop_step": _Proof(
        "rmsprop",
        {**_ALL, "alpha": 0.9, "eps": 1e-8, "momentum": 0.9, "centered": True},
        ("square_avg", "grad_avg", "momentum_buffer", "step"),
        ways=("foreach",),
    ),
    "adagrad_step": _Proof(
        "adagrad",
        {**_ALL, "lr_decay": 0.1, "eps": 1e-10},
        ("sum", "step"),
        has_scale=True,
        off=("has_complex", "has_sparse_grad", "differentiable"),
    ),
    "nadam_step": _Proof(
        "nadam",
        {**_NADAM, "decoupled_weight_decay": False},
        ("exp_avg", "exp_avg_sq", "mu_product", "step"),
        ways=("foreach",),
    ),
}
_UNSET = ("foreach", "fused", "capturable", "differentiable")

# Vectors of 32 bytes and, of both types, three elements beyond.
_SIZE = 39


def prove(c: Any, torch: Any) -> dict[str, str]:
    """By operator, why it must not run with this torch; empty when all is well.

    Groups that ask for ``foreach`` or ``fused`` are served where these agree, too.
    """
    doubts = {}
    for op, proof in _PROOFS.items():
        try:
            if not _agrees(c, torch, proof, None):
                doubts[op] = "torch's own update gives other bits"
        except (AttributeError, TypeError, RuntimeError) as error:
            doubts[op] = f"torch's own update could not be run: {error}"
        for way in proof.ways:
            c.optimizer_trust(op, way, op not in doubts)
            try:
                is_proven = _agrees(c, torch, proof, way)
            except (AttributeError, TypeError, RuntimeError):
                is_proven = False
            c.optimizer_trust(op, way, op not in doubts and is_proven)
    return doubts


def _agrees(c: Any, torch: Any, proof: _Proof, way: str | None) -> bool:
    dtypes = [torch.float32, torch.float64] if way == "fused" else [torch.float32]
    return all(_agrees_in(c, torch, proof, way, dtype) for dtype in dtypes)


def _number(torch: Any, key: str, dtype: Any, generator: Any) -> Any:
    """What an update takes: squares are small, and means less than their roots."""
    if key in ("step", "mu_product"):
        value = 3.0 if key == "step" else 0.5
        return torch.tensor(value, dtype=torch.float32, device="cpu")
    number = torch.randn(_SIZE, generator=generator, dtype=dtype, device="cpu")
    if key in ("param", "grad", "exp_avg", "momentum_buffer"):
        return number
    return number * 1e-6 if key == "grad_avg" else number.abs() * 1e-3


def _agrees_in(c: Any, torch: Any, proof: _Proof, way: str | None, dtype: Any) -> bool:
    options = proof.options
    generator = torch.Generator("cpu").manual_seed(0)
    keys = ("param", "grad", *proof.tensors)
    stock = [_number(torch, key, dtype, generator) for key in keys]
    ours = [n.clone() for n in stock]
    inner = {None: "_single_tensor", "foreach": "_multi_tensor"}.get(way, "_fused")
    module = import_module(f"torch.optim.{proof.module}")
    update = getattr(module, f"{inner}_{proof.module}")
    scale = (None, None) if proof.has_scale else ()
    update(*([n] for n in stock), *scale, **dict.fromkeys(proof.off, False), **options)
    group = {"params": ours[:1], **dict.fromkeys(_UNSET), **options}
    if "beta1" in options:
        group["betas"] = options["beta1"], options["beta2"]
    if way:
        group[way] = True
    ours[0].grad = ours[1]
    state = dict(zip(proof.tensors, ours[2:], strict=True))
    done = c.optimizer_group(proof.module, {ours[0]: state}, group, 1.0, None)
    return (
        done == 1
        and all(map(torch.equal, ours, stock))
        and [bool(n._version) for n in ours] == [bool(n._version) for n in stock]
    )

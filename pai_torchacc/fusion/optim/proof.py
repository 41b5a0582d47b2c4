"""Whether this torch's own updates of optimizers give the bits that ours give.

They run beside ours on a few numbers, once a process: the loop over tensors, and, where
a class has them, ``foreach`` and ``fused``. Autograd has to be told of the same writes:
torch's fused updates tell it of none but the counts'.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_BOTH = {"lr": 0.003, "weight_decay": 0.01, "maximize": False}
_ADAM = {**_BOTH, "eps": 1e-8, "amsgrad": True, "beta1": 0.9, "beta2": 0.999}
_PROOFS: dict[str, dict[str, Any]] = {
    "sgd_step": {**_BOTH, "momentum": 0.9, "dampening": 0.1, "nesterov": False},
    "adam_step": {**_ADAM, "decoupled_weight_decay": False},
    "adamw_step": {**_ADAM, "decoupled_weight_decay": True},
    "adadelta_step": {**_BOTH, "rho": 0.9, "eps": 1e-6},
}
_OFF = dict.fromkeys(("has_complex", "capturable", "differentiable"), False)
_NONE = None, None  # the scale of the gradients, and whether one of them is infinite

# Vectors of 32 bytes and, of both types, three elements beyond.
_SIZE = 39


def prove(c: Any, torch: Any) -> dict[str, str]:
    """By operator, why it must not run with this torch; empty when all is well.

    Groups that ask for ``foreach`` or ``fused`` are served where these agree, too.
    """
    doubts = {}
    for op, arguments in _PROOFS.items():
        try:
            if not _agrees(c, torch, op, arguments, None):
                doubts[op] = "torch's own update gives other bits"
        except (AttributeError, TypeError, RuntimeError) as error:
            doubts[op] = f"torch's own update could not be run: {error}"
        for way in ("foreach", "fused"):
            c.optimizer_trust(op, way, op not in doubts)
            try:
                is_proven = _agrees(c, torch, op, arguments, way)
            except (AttributeError, TypeError, RuntimeError):
                is_proven = False
            c.optimizer_trust(op, way, op not in doubts and is_proven)
    return doubts


def _agrees(
    c: Any, torch: Any, op: str, arguments: dict[str, Any], way: str | None
) -> bool:
    dtypes = [torch.float32, torch.float64] if way == "fused" else [torch.float32]
    return all(_agrees_in(c, torch, op, arguments, way, dtype) for dtype in dtypes)


def _agrees_in(
    c: Any, torch: Any, op: str, arguments: dict[str, Any], way: str | None, dtype: Any
) -> bool:
    generator = torch.Generator("cpu").manual_seed(0)
    numbers = [
        torch.randn(_SIZE, generator=generator, dtype=dtype, device="cpu")
        for _ in range(5)
    ]
    step = torch.tensor(3.0, dtype=torch.float32, device="cpu")
    numbers[3:] = [n.abs() * 1e-3 for n in numbers[3:]]
    ours, stock = [n.clone() for n in numbers], [[n] for n in numbers]
    kind = {"sgd_step": "sgd", "adadelta_step": "adadelta"}.get(op, "adam")
    inner = {None: "_single_tensor", "foreach": "_multi_tensor"}.get(way, "_fused")
    update = getattr(import_module(f"torch.optim.{kind}"), f"{inner}_{kind}")
    group = {"params": ours[:1], **arguments, **({way: True} if way else {})}
    if kind == "sgd":
        update(*stock[:3], *_NONE, has_sparse_grad=False, **arguments)
        state = {"momentum_buffer": ours[2]}
    elif kind == "adadelta":
        for averages in (*ours[2:4], *numbers[2:4]):
            averages.abs_()
        update(*stock[:4], [step.clone()], **_OFF, **arguments)
        state = dict(zip(("square_avg", "acc_delta"), ours[2:4], strict=True))
        state["step"] = step
    else:
        update(*stock, [step.clone()], *_NONE, **_OFF, **arguments)
        keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")
        state = dict(zip(keys, (*ours[2:], step), strict=True))
        group["betas"] = arguments["beta1"], arguments["beta2"]
    ours[0].grad = ours[1]
    done = c.optimizer_group(kind, {ours[0]: state}, group, 1.0, None)
    return (
        done == 1
        and all(map(torch.equal, ours, numbers))
        and [bool(n._version) for n in ours] == [bool(n._version) for n in numbers]
    )

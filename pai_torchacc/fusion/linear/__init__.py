"""Linear layers, alone or followed by an activation, as one operator.

``nn.Linear.forward`` gets a stand-in that goes through the extension, which calls stock
for what it does not take. Where a gradient is needed, :class:`LinearAct` is the node in
the graph. ``torch.nn.functional.linear`` stays as is: tensor subclasses and modes know
it by its identity.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.activations import activated, saves_z, through_activation
from pai_torchacc.fusion.compiled import not_compiled, traced_as
from pai_torchacc.fusion.foreign import is_torchs_own
from pai_torchacc.fusion.linear.on_cuda import products
from pai_torchacc.fusion.node import as_saved, lean_apply, named_like
from pai_torchacc.fusion.shadow import run

_LAST_NODES = ("Addmm", "Relu", "Gelu", "Gelu", "Silu", "Tanh", "Sigmoid")
"""Names of the last of torch's own nodes for each. Ours are called so, too: torch names
nodes where it prints a tensor and in errors about changes in place."""


class LinearAct(torch.autograd.Function):
    """``act(linear(x, w, bias))`` with its gradient.

    What the gradient is computed from (the result, or the values before the activation)
    is an output of the node, so that a second derivative finds its way through it.
    Like torch's own nodes it keeps x and w only where a gradient needs them, and w as a
    view: a program may set ``w.data`` to other memory before backward.
    """

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        activation: int,
        row: str,
        is_training: bool,
    ) -> Any:
        """Compute y, or (y, z) where z is what the activation was applied to."""
        result = run(
            "linear_act",
            _host.load().linear_act_forward,
            (x, w, bias, activation, row, is_training),
            lambda: stock_forward(x, w, bias, activation, is_training),
        )
        if not is_training:
            return result
        y, z = result if isinstance(result, tuple) else (result, None)
        saved = (None, y)[activation != 0] if z is None else z
        needs_x, needs_w = ctx.needs_input_grad[:2]
        ctx.set_materialize_grads(False)
        ctx.activation, ctx.row = activation, row
        ctx.save_for_backward(x if needs_w else None, w if needs_x else None, saved)
        ctx.w_as_it_was = w.detach() if needs_x else None
        return result

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None, grad_z: Tensor | None = None) -> Any:
        """Return the gradients of x, w and bias."""
        x, w, saved = ctx.saved_tensors
        wants = ctx.needs_input_grad[:3]
        as_it_was = ctx.w_as_it_was
        if torch.compiler.is_compiling():  # by compiled autograd
            kept = x, w, saved
            done = gradients(grad, grad_z, kept, ctx.activation, wants, row=None)
            return *done, None, None, None
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.w_as_it_was = None
        kept = x, as_saved(w, as_it_was), saved
        done = gradients(grad, grad_z, kept, ctx.activation, wants, row=ctx.row)
        return *done, None, None, None


def gradients(
    grad: Tensor | None,
    grad_z: Tensor | None,
    kept: tuple[Tensor | None, ...],
    activation: int,
    wants: tuple[bool, ...],
    row: str | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of x, w and bias, of which ``wants`` says what is asked for.

    ``grad`` and ``grad_z`` are those of the result, and of what the activation was
    applied to; ``kept`` is x, w, and what the activation's gradient is computed from;
    ``row`` is the kernel row that ran forward. Without it, and where it may not run,
    torch's own operators do it, and can be differentiated again.
    """
    x, w, saved = kept
    if row and grad is not None and grad_z is None and not torch.is_grad_enabled():
        return run(
            "linear_act_backward",
            _host.load().linear_act_backward,
            (row, activation, grad.contiguous(), x, w, saved, wants),
            lambda: product_gradients(
                through_activation(grad, saved, activation), x, w, wants
            ),
        )
    if row:
        _host.load().refuse("linear_act_backward", "gradient not supported")
    grad = through_activation(grad, saved, activation)
    if grad_z is not None:
        grad = grad_z if grad is None else grad + grad_z
    if grad is None:
        return None, None, None
    return product_gradients(grad, x, w, wants)


def stock_forward(
    x: Tensor, w: Tensor, bias: Tensor | None, activation: int, is_training: bool = True
) -> Any:
    """Compute y by torch's own operators, or (y, z) where a gradient needs z."""
    z = torch._C._nn.linear(x, w, bias)
    y = activated(z, activation)
    return (y, z) if is_training and saves_z(activation) else y


def product_gradients(
    grad: Tensor, x: Tensor | None, w: Tensor | None, wants: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Differentiably, the gradients of x, w and bias, where they are wanted."""
    rows = grad.reshape(-1, grad.shape[-1])
    return (
        grad.matmul(w) if wants[0] else None,
        rows.t().mm(x.reshape(-1, x.shape[-1])) if wants[1] else None,
        rows.sum(0, dtype=rows.dtype) if wants[2] else None,  # not autocast's float32
    )


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    precision, full = _matmul_precision()
    c.lend(
        linear_nodes=tuple(lean_apply(named_like(LinearAct, n)) for n in _LAST_NODES),
        matmul_precision=precision,
        full_precisions=full,
        cuda_products=products(),
        linear_stock=stock_forward,
        onednn_enabled=torch._C._get_mkldnn_enabled,
        stock_linear=torch._C._nn.linear,
    )
    has_own = is_torchs_own(nn.Module, "__getattr__")
    finds = vars(nn.Module)["__getattr__"] if has_own else None
    c.linear_module_install(nn.Linear, nn.Module, finds)
    is_own = is_torchs_own(nn.Linear, "forward")
    forward = _linear_forward(c) if is_own else None
    ledger.set_attribute(nn.Linear, "forward", forward)  # or note who is in the way


def _matmul_precision() -> tuple[Any, tuple[str, ...]]:
    """Torch's setting for products on the CPU, and its values that keep float32.

    A CPU without ``amx_fp16`` has no tf32: torch computes in float32 there. Settings of
    CUDA, such as ``torch.backends.cuda.matmul.allow_tf32``, do not matter.
    """
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    has_tf32 = capabilities.get("amx_fp16", True)
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        of_cpu = functools.partial(
            torch._C._get_fp32_precision_getter, "mkldnn", "matmul"
        )
        return of_cpu, ("none", "ieee") if has_tf32 else ("none", "ieee", "tf32")
    of_all = torch._C._get_float32_matmul_precision
    return of_all, ("highest",) if has_tf32 else ("highest", "high")


@functools.cache
def _linear_forward(c: Any) -> Any:
    """The one stand-in of ``nn.Linear.forward``, which the extension remembers."""
    original, accelerated = vars(nn.Linear)["forward"], c.linear_module
    stock = torch._C._nn.linear

    @traced_as(original)
    @functools.wraps(original)
    def forward(self: nn.Linear, input: Tensor) -> Tensor:
        # Who replaces F.linear wants to be called by this module.
        try:
            if F.linear is not stock:
                return original(self, input)
            return accelerated(self, input)
        except BaseException as error:
            hide(error)
            raise

    return forward

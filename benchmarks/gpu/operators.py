"""Operators beside torch's own: forward, and forward with backward.

A new operator is an entry of ``OPERATORS``: the call as programs write it, ours by
whatever serves it, and how many bytes the operation has to move. These are counted by
construction: each input is read once and each output written once. With the switch off
what programs call by name is torch's operators, one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.rows import Row, failed, named, row
from benchmarks.gpu.timing import Call, Setting, alternate, ours, served, stock
from pai_torchacc import ops
from pai_torchacc.bench.measure_cuda import is_emulated

SECTION = "operator"

Shape = tuple[int, ...]
Made = tuple[Callable[[], Tensor], list[Tensor]]
"""The call, and what gradients are asked of."""

HALF, SINGLE = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Operator:
    """What is called, at which sizes."""

    name: str
    ops: tuple[str, ...]
    """By whose counters it shows whether we served it; of each, its gradient's too."""
    make: Callable[[Shape, torch.dtype], Made]
    shapes: tuple[Shape, ...]
    tiny: Shape
    """For the emulation, where a thread of the device is some hundred instructions."""
    moved: Callable[[Shape, int], tuple[float, float]] = lambda _, __: (0, 0)
    """Bytes of forward and of backward, of elements of so many bytes."""
    flops: Callable[[Shape], float] = lambda _: 0
    """Of forward; backward has twice as many."""
    dtypes: tuple[torch.dtype, ...] = (HALF, SINGLE)
    has_gradient: bool = True


def draw(shape: Shape, dtype: torch.dtype) -> Tensor:
    """A leaf on the device."""
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_()


def of_one(function: Callable[[Tensor], Tensor]) -> Callable[..., Made]:
    """Calls that take one tensor of the shape's."""

    def make(shape: Shape, dtype: torch.dtype) -> Made:
        x = draw(shape, dtype)
        return lambda: function(x), [x]

    return make


def passes(forward: float, backward: float) -> Callable[[Shape, int], Any]:
    """Bytes as multiples of the tensor's."""

    def moved(shape: Shape, item: int) -> tuple[float, float]:
        size = torch.Size(shape).numel() * item
        return forward * size, backward * size

    return moved


def _masked(forward: float, backward: float) -> Callable[[Shape, int], Any]:
    """The same with a mask of bytes, written and read."""

    def moved(shape: Shape, item: int) -> tuple[float, float]:
        n = torch.Size(shape).numel()
        return forward * n * item + n, backward * n * item + n

    return moved


def _cross_entropy(shape: Shape, dtype: torch.dtype) -> Made:
    x = draw(shape, dtype)
    target = torch.randint(0, shape[1], (shape[0],), device="cuda")
    return lambda: F.cross_entropy(x, target), [x]


def _norm(kind: str) -> Callable[..., Made]:
    def make(shape: Shape, dtype: torch.dtype) -> Made:
        x, w, b = (draw(s, dtype) for s in (shape, shape[1:], shape[1:]))
        if kind == "rms":
            return lambda: F.rms_norm(x, shape[1:], w), [x, w]
        return lambda: F.layer_norm(x, shape[1:], w, b), [x, w, b]

    return make


def _add_norm(shape: Shape, dtype: torch.dtype) -> Made:
    sizes = shape, shape, shape[1:], shape[1:]
    x, residual, w, b = (draw(s, dtype) for s in sizes)
    return lambda: ops.add_norm(x, residual, shape[1:], w, b)[0], [x, residual, w, b]


def of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Made]:
    """Calls that take two tensors of the shape's."""

    def make(shape: Shape, dtype: torch.dtype) -> Made:
        a, b = draw(shape, dtype), draw(shape, dtype)
        return lambda: function(a, b), [a, b]

    return make


def _pool(function: Callable[..., Tensor], *window: int, last: bool = False) -> Any:
    def make(shape: Shape, dtype: torch.dtype) -> Made:
        x = torch.randn(shape, device="cuda").to(dtype)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        return lambda: function(x, *window), [x]

    return make


def _pooled(shrinks: float, index_bytes: int) -> Callable[[Shape, int], Any]:
    """Inputs read, outputs and indices written; and all that back."""

    def moved(shape: Shape, item: int) -> tuple[float, float]:
        n = torch.Size(shape).numel()
        both = n * item + n / shrinks * (item + index_bytes)
        return both, both

    return moved


def _block(act: type[nn.Module], **options: Any) -> Callable[..., Made]:
    """Two layers with an activation between them; a shape is rows, width, hidden."""

    def make(shape: Shape, dtype: torch.dtype) -> Made:
        m, width, hidden = shape
        with torch.device("cuda"):
            layers = nn.Linear(width, hidden), act(**options), nn.Linear(hidden, width)
        net, x = nn.Sequential(*layers).to(dtype), draw((m, width), dtype)
        return lambda: net(x), [x, *net.parameters()]

    return make


def _under_autocast(make: Callable[..., Made]) -> Callable[..., Made]:
    """The same in float32, whose dtype autocast then decides; a block a call."""

    def lowered(shape: Shape, dtype: torch.dtype) -> Made:
        call, wanted = make(shape, SINGLE)

        def under_autocast() -> Tensor:
            with torch.autocast("cuda", dtype):
                return call()

        return under_autocast, wanted

    return lowered


def _block_flops(shape: Shape) -> float:
    m, width, hidden = shape
    return 2 * 2 * m * width * hidden


_ROWS = ((8192, 1024), (8192, 8192), (4096, 32768))
_WIDE = ((16384, 1024), (8192, 4096), (4096, 12288))
_IMAGES = ((256, 64, 112, 112),)
_LAYERS = ((4096, 1024, 4096), (8192, 768, 3072), (8192, 4096, 11008), (64, 3136, 128))
_TINY, _TINY_IMAGE = (3, 40), (2, 3, 8, 8)


def _linear(name: str, make: Callable[..., Made], *dtypes: torch.dtype) -> Operator:
    return Operator(
        f"Linear, {name}", ("linear_act", "mlp"), make, _LAYERS, (4, 8, 16),
        flops=_block_flops, dtypes=dtypes or (HALF, torch.float16, SINGLE),
    )  # fmt: skip


OPERATORS: tuple[Operator, ...] = (
    Operator(
        "cross_entropy", ("cross_entropy",), _cross_entropy,
        ((8192, 1000), (8192, 32000), (8192, 128256)), (4, 40), passes(1, 2),
    ),
    Operator(
        "log_softmax", ("log_softmax",), of_one(lambda x: F.log_softmax(x, -1)),
        _ROWS, _TINY, passes(2, 3),
    ),
    Operator(
        "softmax", ("softmax",), of_one(lambda x: torch.softmax(x, -1)),
        _ROWS, _TINY, passes(2, 3),
    ),
    Operator("layer_norm", ("layer_norm",), _norm("layer"), _WIDE, _TINY, passes(2, 3)),
    Operator("rms_norm", ("rms_norm",), _norm("rms"), _WIDE, _TINY, passes(2, 3)),
    Operator(
        "residual + layer_norm", ("add_norm",), _add_norm,
        _WIDE, _TINY, passes(4, 3),
    ),
    Operator(
        "residual + dropout", ("dropout_add",),
        of_two(lambda a, b: ops.dropout_add(a, b, 0.1)), _WIDE, _TINY, _masked(3, 2),
    ),
    Operator(
        "max_pool2d", ("max_pool2d",), _pool(F.max_pool2d, 2),
        _IMAGES, _TINY_IMAGE, _pooled(4, 8),
    ),
    Operator(
        "max_pool2d 3x3, stride 2", ("max_pool2d",), _pool(F.max_pool2d, 3, 2, 1),
        _IMAGES, _TINY_IMAGE, _pooled(4, 8),
    ),
    Operator(
        "max_pool2d, channels last", ("max_pool2d",),
        _pool(F.max_pool2d, 3, 2, 1, last=True), _IMAGES, _TINY_IMAGE, _pooled(4, 8),
    ),
    Operator(
        "max_pool2d of relu", ("relu_max_pool2d",), _pool(ops.relu_max_pool2d, 2),
        _IMAGES, _TINY_IMAGE, _pooled(4, 1),
    ),
    Operator(
        "max_pool2d of relu, 3x3, channels last", ("relu_max_pool2d",),
        _pool(ops.relu_max_pool2d, 3, 2, 1, last=True),
        _IMAGES, _TINY_IMAGE, _pooled(4, 1),
    ),
    Operator(
        "avg_pool2d", ("avg_pool2d",), _pool(F.avg_pool2d, 2),
        _IMAGES, _TINY_IMAGE, _pooled(4, 0),
    ),
    Operator(
        "adaptive_avg_pool2d to 1", ("adaptive_avg_pool2d",),
        _pool(F.adaptive_avg_pool2d, 1), ((256, 2048, 7, 7),), _TINY_IMAGE,
        _pooled(49, 0),
    ),
    _linear("ReLU, Linear", _block(nn.ReLU)),
    _linear("GELU (tanh), Linear", _block(nn.GELU, approximate="tanh")),
    _linear("GELU, Linear", _block(nn.GELU)),
    _linear("SiLU, Linear", _block(nn.SiLU)),
    _linear("ReLU, Linear under autocast", _under_autocast(_block(nn.ReLU)), HALF),
    _linear(
        "GELU (tanh), Linear under autocast",
        _under_autocast(_block(nn.GELU, approximate="tanh")), HALF,
    ),
    Operator(
        "silu(a) * b", ("gated_act",), of_two(ops.gated_act), _WIDE, _TINY, passes(3, 5)
    ),
    Operator(
        "relu(a + b)", ("add_act",), of_two(ops.add_act), _WIDE, _TINY, passes(3, 3)
    ),
)  # fmt: skip


WAYS = "forward", "forward and backward"


def rows(setting: Setting) -> Iterator[Row]:
    """Every operator once at its first size, then the others, while time is left."""
    tiny = is_emulated()
    most = 1 if tiny else max(len(o.shapes) for o in OPERATORS)
    for i in range(most):
        for operator in OPERATORS:
            sizes = (operator.tiny,) if tiny else operator.shapes
            for dtype in operator.dtypes if i < len(sizes) else ():
                if setting.budget.left < 0:
                    return
                yield from measure(operator, sizes[i], dtype, setting)


COMPILED = (
    *("cross_entropy", "layer_norm", "residual + layer_norm", "residual + dropout"),
    *("Linear, GELU (tanh), Linear", "silu(a) * b"),
)
"""Those that torch.compile fuses too, at their first size."""

COMPILES_IN_S = 20
"""What that takes for one of them, about; it is left out with less time left."""


def compiled(setting: Setting) -> Iterator[Row]:
    """Some operators beside torch.compile, as many as there is time for."""
    for operator in OPERATORS:
        if setting.budget.left < COMPILES_IN_S or is_emulated():
            return
        if operator.name in COMPILED:
            first = operator.shapes[0], operator.dtypes[0]
            yield from measure(operator, *first, setting, against_compile=True)


def measure(
    operator: Operator,
    shape: Shape,
    dtype: torch.dtype,
    setting: Setting,
    against_compile: bool = False,
) -> Iterator[Row]:
    """Rows of stock, ours and rivals: forward, and forward with backward."""
    torch.manual_seed(0)
    name = f"{operator.name}, {'x'.join(map(str, shape))}"
    try:
        forward, wanted = operator.make(shape, dtype)
        calls = {"stock": forward, "ours": forward}
        if against_compile:
            calls["compile"] = torch.compile(forward)
        for way in WAYS if operator.has_gradient else WAYS[:1]:
            is_both = way == WAYS[1]
            variants = {
                k: _with_gradients(f, wanted) if is_both else _without_gradients(f)
                for k, f in calls.items()
            }
            counted = operator.ops
            if is_both:
                counted += tuple(f"{op}_backward" for op in counted)
            found = served(counted, variants["ours"])
            timings = alternate(
                {k: (ours if k == "ours" else stock, v) for k, v in variants.items()},
                setting,
            )
            n_bytes = sum(operator.moved(shape, dtype.itemsize)[: 1 + is_both])
            flops = operator.flops(shape) * (3 if is_both else 1)
            for variant, timing in timings.items():
                yield row(
                    (SECTION, f"{name}, {way}", dtype, variant),
                    found if variant == "ours" else "",
                    timing, timings["stock"], n_bytes, flops, setting,
                )  # fmt: skip
    except RuntimeError as error:  # no memory, or torch has no such call here
        yield failed(SECTION, name, named(dtype), error)


def _without_gradients(forward: Callable[[], Tensor]) -> Call:
    def call() -> Tensor:
        with torch.no_grad():
            return forward()

    return call


def _with_gradients(forward: Callable[[], Tensor], wanted: list[Tensor]) -> Call:
    grad = torch.randn_like(forward())
    return lambda: torch.autograd.grad(forward(), wanted, grad)

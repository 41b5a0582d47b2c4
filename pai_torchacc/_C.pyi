"""The C extension, csrc/bind/python. Private to the package: it may change any time.

Where a function returns None in place of a result, stock has to be called. Operators
and reasons go by the names that the report prints; reasons are numbered as in
:func:`reasons`.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor
from torch.nn import Module

_Row = tuple[str, str, bool, bool]  # name, level, runs on this CPU, quarantined
_Point = tuple[str, str, str, int, Any, str | None, float, float]
_Counts = tuple[int, int, dict[str, int], int, int, str]
_Wants = tuple[bool, bool, bool]
_Watched = tuple[Any, str, Any]  # an owner, a name, what the name means to it

# Loading, and what there is.
def load(directory: str, hidden: str | None, /) -> str | None:
    """Resolve libtorch's symbols in this folder; the one that is missing, or None."""

def symbols() -> dict[str, bool]:
    """Which symbols of libtorch were found."""

def cpu() -> tuple[str, str]:
    """``vendor-family-model`` and the instruction set in use."""

def limit_isa(name: str, /) -> None:
    """Run only rows of ``scalar``, ``avx2`` or ``avx512`` and below."""

def operators() -> list[tuple[str, list[str], list[_Row]]]:
    """Operators with their shape kinds and rows."""

def bf16_rows() -> list[tuple[str, str]]:
    """Operators and those of their rows that round operands to bfloat16."""

def bf16_calls() -> int:
    """Calls that such rows have served since the process started."""

def bf16_hardware() -> str:
    """What multiplies bfloat16 here: nothing, ``avx512`` or ``avx512, amx``."""

def reasons() -> list[str]:
    """Why a call may go to stock; the first, empty, is none."""

# What runs.
def install_table(points: list[_Point], /) -> None:
    """Replace the chooser's table."""

def set_gate(op: str, reason: int, /) -> None:
    """Open an operator (0) or close it for this reason."""

def pinned(op: str, /) -> str | None:
    """The row that serves all calls of the operator."""

def pin(op: str, row: str | None, /) -> str | None:
    """Serve the operator by this row whatever the table says; None takes it back.

    Returns what was pinned before.
    """

def op_switches() -> dict[str, str]:
    """The switch that owns each operator."""

def preferred_row(op: str, /) -> str | None:
    """The row that runs where no table is asked, at level close."""

def override_names() -> list[tuple[str, str]]:
    """Operators of aten that can be overridden, and whose they are."""

def override_install(ops: list[str], /) -> str | None:
    """Register the overrides of these operators; what went wrong, or None."""

def override_installed() -> list[str]:
    """Operators whose overrides are in the dispatcher."""

def override_typed() -> list[str]:
    """Of those, the operators that torch calls without boxing arguments."""

def override_remove(ops: list[str], /) -> None:
    """Take these overrides out again; no call of ours may be in flight."""

def thread_disable() -> object:
    """Disable this thread until what is returned is gone, wherever that happens."""

def thread_mute(by: int, /) -> None:
    """Disable likewise, and do not count what is refused."""

def thread_is_disabled() -> bool:
    """Whether this thread is, by either of the two."""

def flight() -> tuple[int, int]:
    """Calls in flight, and calls ever entered."""

def when_forwarded(callback: Callable[[], object], /) -> None:
    """Call back once, in the main thread, soon after a call that finds us off."""

# What happened.
def counters(op: str, /) -> _Counts:
    """Accelerated, failed, forwarded by reason, ns saved, calls timed, trouble."""

def estimates(op: str, /) -> tuple[float, float, float]:
    """Stock's ns for accelerated calls by the table, saved of it, for others."""

def refuse(op: str, reason: str, /) -> None:
    """Count a call that Python itself sent to stock."""

def shadow_every(every: int, /) -> None:
    """Compare one call in so many with stock; 0 for none."""

def shadow_due(op: str, /) -> bool:
    """Whether stock is to repeat this call; counts the call."""

def shadow_settle(
    op: str,
    ours: tuple[Tensor, ...],
    stock: tuple[Tensor, ...],
    ours_ns: int,
    stock_ns: int,
    /,
) -> bool:
    """Whether results agree; if not, the row that gave them is quarantined."""

def last_row(op: str, /) -> str | None:
    """The row that this thread last ran of the operator."""

# What this torch is like.
def tensor_learn(
    tensor: type[Tensor],
    parameter: type[Tensor],
    steal: Callable[[Any], Tensor],
    increment_version: Callable[[Tensor], None],
    samples: list[tuple[Tensor, int, int]],
    /,
) -> bool:
    """Find where tensors keep what lean call paths look at."""

def thread_state() -> tuple[int, int] | None:
    """Included and excluded dispatch keys of this thread, where torch shows them."""

def thread_learn(
    included: int,
    excluded: int,
    harmless: int,
    count_modes: Callable[[], int],
    profiler_enabled: Callable[[], bool],
    forward_ad: dict[str, Any],
    /,
) -> None:
    """Remember the dispatch keys of inference mode, and exclusions without effect."""

def thread_is_plain() -> bool:
    """Whether this thread runs ordinary eager code."""

def learn_sqrt(x: Tensor, roots: Tensor, /) -> bool:
    """Whether our square roots round as these of torch's."""

def learn_fma(a: Tensor, b: Tensor, alpha: float, total: Tensor, /) -> bool:
    """Whether our ``a + alpha * b`` rounds as this one of torch's."""

# Nodes in autograd's graph.
def node_learn(samples: tuple[tuple[object, int], ...], /) -> bool:
    """Learn to read torch's nodes from three that this thread has just made."""

def node_install(top_hooks: Callable[[bool], object | None], /) -> None:
    """Remember how to ask for hooks on the tensors that nodes save."""

# Linear layers; activation is an index into fusion.linear.ACTIVATIONS.
def linear_install(
    applies: tuple[Callable[..., Any], ...],
    matmul_precision: Callable[[], str],
    full_precisions: tuple[str, ...],
    onednn_enabled: Callable[[], bool],
    /,
) -> None:
    """Remember the nodes, one an activation, and torch's settings for products.

    Calls go to stock unless ``matmul_precision()`` gives one of ``full_precisions``.
    """

def linear_module_install(
    linear: type[Module],
    module: type[Module],
    getattr: Callable[..., Any] | None,
    product: Callable[..., Tensor],
    /,
) -> None:
    """Remember two classes, how the second finds parameters, and torch's product."""

def linear_module(module: Module, x: Tensor, /) -> Tensor:
    """What ``nn.Linear.forward`` gives."""

def linear_row(x: Tensor, w: Tensor, /) -> str | None:
    """The row by which :func:`linear_act` would multiply now."""

def linear_act(
    x: Tensor, w: Tensor, bias: Tensor | None, activation: int, /
) -> Tensor | None:
    """``activation(x @ w.T + bias)``."""

def linear_act_kernel(
    x: Tensor, w: Tensor, bias: Tensor | None, activation: int, /
) -> Tensor | tuple[Tensor, Tensor] | None:
    """The same below autograd: y, or (y, z) where a gradient would need z."""

def linear_act_forward(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    activation: int,
    row: str,
    is_training: bool,
    /,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """Compute y, or (y, z) where a gradient needs z."""

def linear_act_backward(
    row: str,
    activation: int,
    grad: Tensor,
    x: Tensor | None,
    w: Tensor | None,
    saved: Tensor | None,
    wants: _Wants,
    /,
) -> tuple[Tensor | None, Tensor | None, Tensor | None] | None:
    """Gradients of x, w and bias, as far as wanted."""

def int8_pack(weight_int8: Tensor, groups: int, /) -> Tensor:
    """Weights [n, c, *taps] in the kernels' order, with their sums."""

def int8_unpack(packed: Tensor, sizes: tuple[int, ...], groups: int, /) -> Tensor:
    """The plain weights again."""

def int8_quantize(weight: Tensor, /) -> tuple[Tensor, Tensor, float, float] | None:
    """Weights as int8, scales, and sums of w**2 and (w - scale * q)**2.

    None where one is not finite.
    """

def int8_faster(operator: str, kind: str, work: int, threads: int, /) -> bool | None:
    """Whether the table has a row faster than stock there; None: no such place."""

def int8_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    n: int,
    k: int,
    activation: int = 0,
    /,
) -> Tensor | None:
    """``activation(x @ w.T + bias)`` by int8; None where a mode is active.

    ``int8_linear_kernel`` is the same for the dispatcher, below modes, and so are the
    other two.
    """

int8_linear_kernel = int8_linear

def int8_conv2d(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    geometry: Sequence[int],
    activation: int = 0,
    normalization: (
        tuple[Tensor | None, Tensor | None, Tensor, Tensor, float] | None
    ) = None,
    /,
) -> Tensor | None:
    """Convolve by int8; the geometry's numbers are those of quantization.layers."""

int8_conv2d_kernel = int8_conv2d

def int8_embedding(
    indices: Tensor, weight_int8: Tensor, scale: Tensor, /
) -> Tensor | None:
    """``(scale[:, None] * weight_int8)[indices]``; None where a mode is active."""

int8_embedding_kernel = int8_embedding

def module_guards_install(
    classes: list[tuple[type, list[_Watched]]],
    hooks: list[dict[int, Any]],
    /,
) -> None:
    """Remember classes of modules, and what names mean to owners that a call asks."""

def sequential(module: Any, input: Any, /) -> Any:
    """What the modules of this ``nn.Sequential`` make of input."""

# Cross-entropy.
def cross_entropy_install(
    apply: Callable[..., Any], stock: Callable[..., Tensor], /
) -> None:
    """Remember the node for gradients, and torch's own loss."""

def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    /,
) -> Tensor:
    """Compute the loss, by stock where no row takes the call."""

def cross_entropy_kernel(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    /,
) -> tuple[Tensor, Tensor] | None:
    """Compute the loss and the softmax, below autograd."""

def cross_entropy_forward(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    row: str,
    /,
) -> tuple[Tensor, Tensor] | None:
    """Compute the loss and the softmax."""

def cross_entropy_backward(
    p: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    row: str,
    grad: Tensor,
    over_p: bool,
    /,
) -> Tensor | None:
    """Gradient of x from the softmax, which may be overwritten."""

# Optimizers.
def optimizer_prepare() -> None:
    """Call once before the others."""

def optimizer_group(
    is_sgd: bool,
    states: dict[Tensor, Any],
    group: dict[str, Any],
    multiplier: float,
    sums: list[float] | None,
    /,
) -> Literal[-1, 0, 1]:
    """1: done; 0: stock has to do it; -1: stock has to make the states first.

    The rate is multiplied; decoupled weight decay goes by the rate as it is.
    """

def optimizer_step(
    is_sgd: bool, optimizer: Any, multiplier: float, sums: list[float] | None, /
) -> bool:
    """Whether the whole step is done; nothing is written when not."""

def zero_grads(groups: list[dict[str, Any]], /) -> bool:
    """Whether all gradients are None now."""

# The adaptive learning rate.
def descent_sum(
    grads: list[Tensor],
    averages: list[Tensor] | None,
    squares: list[Tensor] | None,
    scale: float,
    numbers: tuple[float, float, float, float, float] | None,
    /,
) -> float | None:
    """Sum of gradient times direction; None where the tensors are not plain.

    ``numbers``: keep_average, add_average, keep_square, add_square, eps; None for the
    sum of squares.
    """

def rate_next(
    state: array[float],
    loss: float,
    descent: float,
    most_descent: float,
    known_floor: float,
    most_exponent: float,
    most_growth: float,
    falls_by_evidence: bool,
    /,
) -> float:
    """The multiplier for the coming step; ``state`` is brought up to date."""

def rate_next_free(
    state: array[float],
    squares: float,
    distance: float,
    lr: float,
    most_exponent: float,
    most_growth: float,
    /,
) -> float:
    """The same where there is no loss to go by."""

def rate_fields() -> list[str]:
    """Names of the numbers in a state, in order."""

# The memory pool.
def memory_limit() -> int | None:
    """Bytes that the control group may have."""

def pool_routes() -> list[str]:
    """Ways to torch's allocator, the best first."""

def malloc_keeps(is_wanted: bool, /) -> bool:
    """Have glibc's malloc keep what is freed, or be as by default; whether it can."""

def pool_enable(
    route: str,
    policy: str,
    cap: int,
    reserve: int,
    history: int,
    idle_s: int,
    fill: int,
    /,
) -> str | None:
    """Serve torch's CPU storages, or take other options; None, or what is wrong."""

def pool_disable() -> None:
    """Requests go to libc; blocks in use still come back."""

def pool_state() -> tuple[str, int, int]:
    """``off``, ``on`` or ``draining``; blocks in use; whether slots are others' now."""

def pool_slots() -> tuple[list[int], list[int]]:
    """What libc10's imports of ``posix_memalign`` and of ``free`` lead to."""

def pool_owns(address: int, /) -> bool:
    """Whether this address lies in the pool's arena."""

def pool_trim() -> int:
    """Give back memory that no block uses; bytes."""

def scratch_kept() -> int:
    """Bytes that kernels keep to work in."""

def scratch_clear() -> int:
    """Give these back; how many there were."""

def pool_begin_probe() -> None:
    """Requests of this thread go to libc from here on, and count nowhere."""

def pool_end_probe() -> bool:
    """No longer; whether the last of them came to the pool, and its free."""

def pool_plan_steps(is_wanted: bool, /) -> None:
    """Whether steps that repeat are placed by a plan."""

def pool_end_step() -> None:
    """A step of training ends here."""

def pool_policies() -> list[str]:
    """Names of the placement policies."""

def pool_stats() -> dict[str, int]:
    """Statistics by torch's keys."""

def pool_reset_peaks() -> None:
    """Peaks become what is current."""

def pool_blocks() -> tuple[int, int, list[tuple[int, int, int, bool]]]:
    """Base, bytes held, and blocks: address, bytes, requested, whether free."""

def pool_history() -> list[tuple[str, int, int, int, int]]:
    """Events: kind, address, bytes, stream, nanoseconds since 1970."""

def pool_replay(
    policy: str, granule: int, least: int, steps: list[tuple[int, int]], /
) -> tuple[int, int, int]:
    """Peaks: live, arena, planned; a step is (bytes, 0) or (0, freed one)."""

def pool_pair_ns(bytes: int, n: int, /) -> float:
    """Nanoseconds that an allocation and its release take in the pool."""

# The CUDA pool, and pinned host memory.
def cuda_pool_open(policy: str, cap: int, history: int, /) -> str | None:
    """Load the driver and take options for devices; None, or what is wrong."""

def cuda_pool_entries() -> dict[str, int]:
    """Addresses of the functions that torch's pluggable allocator is given."""

def cuda_pool_stats(device: int, /) -> dict[str, int]:
    """Statistics by torch's keys; empty while the device has not been used."""

def cuda_pool_blocks(
    device: int, /
) -> list[tuple[int, int, int, int, int, bool, bool, int]]:
    """Arena's base and bytes held; address, bytes, requested, flags, stream."""

def cuda_pool_history(device: int, /) -> list[tuple[str, int, int, int, int]]:
    """Events, as pool_history() tells them."""

def cuda_pool_reset_peaks(device: int, /) -> None:
    """Peaks become what is current."""

def cuda_pool_trim() -> int:
    """Wait for all devices and give back memory that no block uses; bytes."""

def pinned_open(bytes: int, threads: int, /) -> str | None:
    """Register so much host memory with the driver; None, or what is wrong."""

def pinned_close() -> bool:
    """Whether it is gone: no block of it is used."""

def pinned_alloc(bytes: int, /) -> int | None:
    """Address of a block, or None when there is no room."""

def pinned_free(address: int, /) -> bool:
    """Whether a used block began there."""

def pinned_stats() -> dict[str, int]:
    """Statistics by torch's keys."""

# Forks.
def fork_guards(
    locks: tuple[Any, ...], /
) -> tuple[Callable[[], None], Callable[[], None], Callable[[], None]]:
    """What to call before a fork, in the parent and in the child."""

# What autograd saves. An address is that of contiguous memory, n counts elements.
class Held:
    """What a node keeps of a tensor that it saved."""

    tensor: Tensor | None
    origin: Any
    box: Any
    geometry: Any
    version: int

def saved_install(
    consider: Callable[[Held, Tensor], Any],
    restore: Callable[[Held], Tensor],
    complain: Callable[[Held, int], str],
    leave: Callable[[], object],
    current: Callable[[Held, Any], Tensor],
    saves_outputs: Callable[[type], bool],
    /,
) -> bool:
    """Remember the package's part; whether this torch has what the hooks need."""

def saved_remove() -> None:
    """Consider nothing any more; what is held can still be restored."""

def float_mode() -> int:
    """How this thread rounds and treats subnormal numbers, as the CPU keeps it."""

def set_float_mode(mode: int, /) -> None:
    """Go back to what :func:`float_mode` gave."""

def set_own_threads(n: int, /) -> bool:
    """Have this thread alone share its work among so many; whether that could be."""

def saved_least(n_bytes: int, /) -> int:
    """Look at tensors from this size on; what it was (tests)."""

def saved_is_on() -> bool:
    """Whether large tensors are considered."""

def saved_pack(tensor: Tensor, /) -> Held:
    """The hook for what is saved."""

def saved_unpack(holder: Held, /) -> Tensor:
    """The hook for what is wanted back."""

def saved_release(holder: Held, geometry: Any, /) -> None:
    """Have a holder let go of its tensor, and remember what it looked like."""

def layer_norm_apply(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, y: Tensor, /
) -> bool:
    """Compute what a layer norm gave; False where that is not for us."""

def layer_norm_matches(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, y: Tensor, /
) -> bool:
    """Whether layer_norm_apply would give y, to the bit."""

def saved_book(mechanism: str, n_bytes: int, /) -> None:
    """Count bytes saved from now on, or no more where negative."""

def saved_bytes() -> dict[str, tuple[int, int, int, int]]:
    """By mechanism and in all: bytes now, at most, ever; how often."""

def saved_bytes_reset() -> None:
    """Count from here."""

def pack_probe(tensor: Tensor, /) -> int:
    """What a sample promises: nothing, two values or zeros."""

def pack_bitmask(x: int, n: int, width: int, bits: int, /) -> tuple[int, int] | None:
    """Pack elements of at most two values; these values, or None."""

def unpack_bitmask(
    bits: int, first: int, second: int, n: int, width: int, x: int, /
) -> None:
    """Unpack them."""

def pack_equal(x: int, y: int, n: int, /) -> bool:
    """Whether so many bytes are the same."""

def pack_count(x: int, n: int, starts: int, /) -> int:
    """How many elements are not 0, in each chunk and in all."""

def pack_nonzero(x: int, n: int, starts: int, bits: int, values: int, /) -> bool:
    """Pack those; whether there still are as many."""

def unpack_nonzero(bits: int, values: int, starts: int, n: int, x: int, /) -> None:
    """Unpack them."""

def pack_index_width(x: int, n: int, /) -> int:
    """Bytes that hold each of these integers."""

def pack_indices(x: int, n: int, width: int, narrow: int, /) -> None:
    """Pack integers to that width."""

def unpack_indices(narrow: int, n: int, width: int, x: int, /) -> None:
    """Unpack them."""

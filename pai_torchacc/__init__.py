"""Makes unmodified PyTorch programs faster, and reports what it did.

    import pai_torchacc as ptac
    ptac.enable()
    ...
    print(ptac.report())

Importing changes nothing. :func:`enable` switches on; :func:`disable` restores
everything; :func:`report` says what ran accelerated and what did not, and why.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pai_torchacc import (  # importing a switch puts it in the table of features
    _exclusion,
    _options,
    _switch,
    adaptive_lr,  # noqa: F401
    fusion,  # noqa: F401
    memory_pool,  # noqa: F401
    memory_reuse,  # noqa: F401
    quantization,  # noqa: F401
)
from pai_torchacc._exclusion import Exclusion
from pai_torchacc._report import at_exit
from pai_torchacc._switch import Handle, disabled
from pai_torchacc._version import __version__ as __version__
from pai_torchacc.adaptive_lr.public import (
    adaptive_lr_report,
    disable_adaptive_lr,
    enable_adaptive_lr,
)
from pai_torchacc.quantization.public import (
    dequantize_model,
    dequantize_state_dict,
    disable_model_quantization,
    enable_model_quantization,
    load_quantized,
    quantization_report,
    quantize_model,
    save_quantized,
)

if TYPE_CHECKING:
    from pai_torchacc import ops as ops
    from pai_torchacc.verification import Verification

_switch.when_asked.append(at_exit.ask)

__all__ = [
    "Handle",
    "adaptive_lr_report",
    "dequantize_model",
    "dequantize_state_dict",
    "disable",
    "disable_adaptive_lr",
    "disable_memory_pool",
    "disable_memory_reuse",
    "disable_model_quantization",
    "disable_operator_fusion",
    "disabled",
    "empty_cache",
    "enable",
    "enable_adaptive_lr",
    "enable_memory_pool",
    "enable_memory_reuse",
    "enable_model_quantization",
    "enable_operator_fusion",
    "exclude",
    "is_enabled",
    "load_quantized",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "ops",
    "quantization_report",
    "quantize_model",
    "report",
    "reset_peak_memory_stats",
    "save_quantized",
    "status",
    "verify",
]


def enable(
    *features: str,
    numerics: Literal["exact", "close", "fast"] | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    verify: int | None = None,
    strict: bool = False,
    calibration: str | os.PathLike[str] | None = None,
) -> Handle:
    """Switch features on, for the whole process and all of its threads.

    May be called at any time, before or after models and optimizers exist. Enabling
    twice equals once; the latest options hold. Every change is undone by
    :func:`disable`.

    Parameters
    ----------
    *features : str
        Names of switches, such as ``"operator_fusion"``. Without names: those that
        ``PTAC_ENABLE`` lists, else all that do not have to be asked for by name.
    numerics : {"exact", "close", "fast"}, optional
        How close to stock's the numbers must be. ``"exact"``: bit for bit.
        ``"close"`` (the default): against float64, within twice stock's own error
        (root mean square; three times for the maximum). ``"fast"``: each row states
        its own bound. Default: ``PTAC_NUMERICS``, else ``"close"``.
    include, exclude : iterable of str, optional
        Operator names as :func:`report` prints them: only these, all but these. The
        name of a forward operator also stands for its ``_backward``.
    verify : int, optional
        Repeat one accelerated call in this many by stock and compare; an offender is
        quarantined. 0 (the default) never does. Default: ``PTAC_VERIFY``.
    strict : bool
        Raise where a feature cannot be switched on, instead of returning a handle that
        says why.
    calibration : path, optional
        A table that ``python -m pai_torchacc calibrate FILE`` wrote. Default:
        ``PTAC_CALIBRATION``, else the table committed for this CPU family.

    Returns
    -------
    Handle
        True when active, with ``.reason`` when not. As a context manager it restores
        at its end the state found at its beginning; as a decorator, around each call.

    Raises
    ------
    ValueError, TypeError
        An option or a ``PTAC_*`` variable is wrong, or no operator is left; the text
        names the accepted values.
    OSError
        The calibration table cannot be read.
    RuntimeError
        ``strict`` and a feature cannot be active.
    """
    config = _options.config_from_environment()
    names = (
        _options.names_checked(features)
        if features
        else _options.features_from_environment()
    )
    held = _switch.current()
    lent = held.lent
    if lent is not None and "operator_fusion" in names:
        lent = False, lent[1] if numerics is None else numerics
    config = replace(
        config,
        lent=lent,
        features=_options.names_checked((*held.features, *names)),
        include=_options.operators_checked(include, "include"),
        exclude=_options.operators_checked(exclude, "exclude") or frozenset(),
        pool=held.pool,
        rate=held.rate,
        training=held.training,
    )
    if held.training is not None:
        config = replace(config, numerics="fast")
    if numerics is not None:
        config = replace(config, numerics=_options.numerics_checked(numerics))
    if verify is not None:
        config = replace(config, verify=_options.verify_checked(verify))
    if calibration is not None:
        config = replace(config, calibration=_options.calibration_checked(calibration))
    return _switch.enable(config, _options.strict_checked(strict))


def disable(*features: str) -> None:
    """Switch features off and restore what they changed.

    Without names everything is switched off. Kernels stop at once; dispatcher entries
    leave when no call of ours is in flight and no backward pass runs, at the latest at
    the next quiet moment (:func:`status` says ``draining`` until then).

    Raises
    ------
    ValueError, TypeError
        There is no such feature.
    """
    _switch.disable(*features)


def enable_operator_fusion(ops: Iterable[str] | None = None) -> Handle:
    """Switch on drop-in kernels, fused operators and optimizer steps.

    Part of a bare :func:`enable`. Other options stay as they are.

    Parameters
    ----------
    ops : iterable of str, optional
        Only these operators, by the names that :func:`report` prints. The name of a
        forward operator also stands for its ``_backward``.

    Raises
    ------
    ValueError, TypeError
        There is no such operator, or none is left.
    """
    lent = _switch.current().lent
    kept = None if lent is None else (False, lent[1])
    checked = _options.operators_checked(ops, "ops")
    return _switch.enable_one("operator_fusion", ops=checked, lent=kept)


def disable_operator_fusion() -> None:
    """Switch operator fusion off and restore what it changed."""
    disable("operator_fusion")


def enable_memory_pool(
    device: str | None = None,
    *,
    cap: int | None = None,
    reserve: int | None = None,
    trim: Literal["auto", "never"] | int = "auto",
    policy: str = "exact_fit",
    fill: Literal["zero", "junk"] | None = None,
    history: int = 0,
) -> Handle:
    """Have large tensors come from a pool: no page faults in steady state, less memory.

    Part of a bare :func:`enable`. On the CPU, storages of 64 KiB and more are served
    from one arena of the process, for all threads, from now on; tensors that exist
    already stay where they are, and are freed as ever. Numbers are not touched.

    Parameters
    ----------
    device : {None, "cpu", "cuda"}
        None: the CPU's pool, and torch's own CUDA allocator at its best setting
        (expandable segments) where nothing stands against that. ``"cuda"``: a pool of
        ours below torch instead, to be asked for before CUDA is initialised;
        :mod:`pai_torchacc.memory_pool.cuda` says what it then lacks. The status has
        what is done for CUDA, or why nothing is.
    cap : int, optional
        Bytes that the pool may hold. Beyond it a request fails with torch's own error
        for lack of memory, after the pool has given back what it can. Default: nine
        tenths of the control group's limit; no cap where there is none.
    reserve : int, optional
        Bytes to bring into memory at once, which go back like other memory that no
        tensor uses (see ``trim``). Default: none; pages come at first touch.
    trim : {"auto", "never"} or int
        When memory that no tensor uses is given back to the system: after 30 seconds
        without a request, or so many; when memory is short; at the cap; and by
        :func:`empty_cache`. ``"never"``: only by the last three.
    policy : {"exact_fit", "best_fit", "first_fit"}
        Which free block a request is cut from; ``csrc/mem/README.md`` describes them.
    fill : {"zero", "junk"}, optional
        For debugging: what new storages of all sizes hold, instead of what was there.
    history : int
        Events to remember for :func:`memory_snapshot`.

    Returns
    -------
    Handle
        Not active, with its reason, where torch's allocator cannot be reached.

    Raises
    ------
    ValueError, TypeError
        An option is wrong; the text names what it may be.
    """
    options = _options.PoolOptions(
        device=None if device is None else _options.device_checked(device),
        cap=cap,
        reserve=0 if reserve is None else reserve,
        trim=trim,
        policy=policy,
        fill=fill,
        history=history,
    )
    return _switch.enable_one("memory_pool", pool=_options.pool_checked(options))


def disable_memory_pool() -> None:
    """New storages come from libc; those of the pool return when they are freed.

    While ``memory_reuse`` is on, it keeps the pool on, with the options it has.
    """
    disable("memory_pool")


def enable_memory_reuse() -> Handle:
    """Lower the peak memory of training, with the same bits.

    By name only. Cheap tensors that autograd saves are computed again instead of kept,
    masks and indices are packed, and repeated steps are placed by a plan. The CPU's
    memory pool is on as long as this is. Holds for this thread and those that start
    from now on.
    """
    return _switch.enable_one("memory_reuse")


def disable_memory_reuse() -> None:
    """Autograd keeps what it saves; what is saved already is still given back."""
    disable("memory_reuse")


def memory_stats(device: object = "cpu") -> dict[str, int]:
    """Statistics of a device's pool, with the keys of ``torch.cuda.memory_stats``.

    On the CPU they are about storages of 64 KiB and more, made while the pool was on.
    Bytes and counts, each ``current``, ``peak``, ``allocated`` and ``freed`` (both
    since the pool was opened last), for ``all``, ``large_pool`` and ``small_pool`` (up
    to a MiB); the arena counts as large. Keys that torch lacks begin with ``ptac.``;
    among them ``ptac.arena_bytes``, what the arena spans up to its last block in use.
    Empty for CUDA that is not initialised.

    Raises
    ------
    ValueError, TypeError
        There is no pool for such a device.
    """
    from pai_torchacc.memory_pool import statistics

    return statistics.stats(device)


def memory_summary(device: object = "cpu", abbreviated: bool = False) -> str:
    """The statistics as a table for people, as ``torch.cuda.memory_summary``."""
    from pai_torchacc.memory_pool import statistics

    return statistics.summary(device, abbreviated)


def reset_peak_memory_stats(device: object = "cpu") -> None:
    """Every ``peak`` becomes what is current."""
    from pai_torchacc.memory_pool import statistics

    statistics.reset_peaks(device)


def memory_snapshot(
    device: object = "cpu", path: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """The pool's blocks, and its last events, as ``torch.cuda.memory._snapshot``.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        Whose pool.
    path : path, optional
        Write it there as well, pickled: a file for PyTorch's memory_viz.

    Returns
    -------
    dict
        ``segments``, ``device_traces`` (events, if ``enable_memory_pool(history=n)``
        was asked for), ``allocator_settings``, ``external_annotations``.
    """
    from pai_torchacc.memory_pool import snapshot

    return snapshot.snapshot(device, path)


def empty_cache(device: object = None) -> int:
    """Give memory that no tensor uses back to the system; how many bytes.

    Parameters
    ----------
    device : {None, "cpu", "cuda"}
        Whose pool; None for all.
    """
    from pai_torchacc.memory_pool import statistics

    return statistics.empty(device)


def is_enabled(name: str) -> bool:
    """Whether this feature is active.

    Raises
    ------
    ValueError, TypeError
        There is no such feature.
    """
    _options.names_checked((name,))
    return _switch.is_active(name)


def exclude(module: Any) -> Exclusion:
    """Run stock operators in the forward passes of one module and of what it contains.

    Forward hooks of the module do it, in every thread, until the result's
    :meth:`remove`, or the end of a ``with`` block. Copies and pickles of the module
    have the hooks too. The gradients of operators that ran stock are chosen as ever:
    ``enable(exclude=[...])`` leaves an operator out with its gradient, everywhere.

    Parameters
    ----------
    module : torch.nn.Module
        Such as one layer of a model.

    Raises
    ------
    TypeError
        This is no module.
    """
    return _exclusion.exclude(module)


def status() -> dict[str, dict[str, Any]]:
    """What every switch does now.

    Returns
    -------
    dict
        By feature name: ``active``, ``reason`` when not active although asked for,
        ``since`` (ISO 8601), and ``draining`` while entries of a switch that is off
        wait for a quiet moment.
    """
    return _switch.switch_status()


def report(format: Literal["text", "json"] = "text", reset: bool = False) -> str:
    """What ran accelerated, what was forwarded and why.

    Parameters
    ----------
    format : {"text", "json"}
        An aligned table, or the document that README describes, as JSON text.
    reset : bool
        Start counting anew after this report.

    Returns
    -------
    str
    """
    from pai_torchacc import _report

    return _report.report(format, reset)


def verify(model: Any, *inputs: Any, backward: bool = True) -> Verification:
    """Run a model by stock and accelerated and hold both against float64.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Left as it was: parameters, buffers, gradients, random state.
    *inputs
        Its arguments; tensors, or anything else it takes.
    backward : bool
        Also compare the gradients of the sum of its outputs.

    Returns
    -------
    pai_torchacc.verification.Verification
        True when every tensor keeps the contract of the active numerics level; as
        text, a table. Tensors that differ and have no float64 reference (the model
        cannot compute in float64, or drew other random numbers there) are held to
        ``rtol=1e-3, atol=1e-5``, and the table says so.
        A model with int8 layers is held to 20 dB signal to noise against itself with
        dequantized weights; the table gives the dB.
        Where one run does not keep it, four more of both sides from numbers that
        differ in the last bit are judged with it: gradients jump where a ReLU's input
        is next to zero, stock's too.
    """
    from pai_torchacc import verification

    return verification.verify(model, inputs, backward)


if not TYPE_CHECKING:  # to checkers, names that are not there are errors

    def __getattr__(name: str) -> Any:
        if name == "ops":
            import importlib

            return importlib.import_module("pai_torchacc.ops")
        raise AttributeError(_what_there_is(name), name=name, obj=sys.modules[__name__])


def _what_there_is(name: str) -> str:
    text = f"module {__name__!r} has no attribute {name!r}"
    if name.startswith("_"):  # which tools ask for
        return text
    near = difflib.get_close_matches(name, __all__, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"{text}{hint} There are: {', '.join(__all__)}"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

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
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pai_torchacc import _environment, _options, _switch
from pai_torchacc._report import at_exit, report
from pai_torchacc._switch import Exclusion as Exclusion
from pai_torchacc._switch import Handle, disable, disabled, disabler, exclude, status
from pai_torchacc._version import __version__ as __version__

# Importing a switch puts it in the table of features.
from pai_torchacc.adaptive_lr import adaptive_lr_report, enable_adaptive_lr
from pai_torchacc.batch_size import find_batch_size
from pai_torchacc.data_parallelism import enable_data_parallelism, explain_parallelism
from pai_torchacc.data_pipeline import enable_data_pipeline, prefetch
from pai_torchacc.distributed.fsdp import tune_fsdp
from pai_torchacc.distributed.tuning import tune_ddp
from pai_torchacc.distributed.watching import watch_ranks
from pai_torchacc.fusion import enable_operator_fusion
from pai_torchacc.graph import (
    enable_graph_optimization,
    explain,
    optimize,
    unoptimize,
)
from pai_torchacc.memory_pool import enable_memory_pool
from pai_torchacc.memory_pool.snapshot import memory_snapshot
from pai_torchacc.memory_pool.statistics import (
    empty_cache,
    memory_stats,
    memory_summary,
    reset_peak_memory_stats,
)
from pai_torchacc.memory_reuse import enable_memory_reuse
from pai_torchacc.quantization.public import (
    dequantize_model,
    dequantize_state_dict,
    enable_model_quantization,
    load_quantized,
    quantization_report,
    quantize_model,
    save_quantized,
)

if TYPE_CHECKING:
    from pai_torchacc import graph as graph
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
    "disable_data_parallelism",
    "disable_data_pipeline",
    "disable_graph_optimization",
    "disable_memory_pool",
    "disable_memory_reuse",
    "disable_model_quantization",
    "disable_operator_fusion",
    "disabled",
    "empty_cache",
    "enable",
    "enable_adaptive_lr",
    "enable_data_parallelism",
    "enable_data_pipeline",
    "enable_graph_optimization",
    "enable_memory_pool",
    "enable_memory_reuse",
    "enable_model_quantization",
    "enable_operator_fusion",
    "exclude",
    "explain",
    "explain_parallelism",
    "find_batch_size",
    "graph",
    "is_enabled",
    "load_quantized",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "ops",
    "optimize",
    "prefetch",
    "quantization_report",
    "quantize_model",
    "report",
    "reset_peak_memory_stats",
    "save_quantized",
    "status",
    "tune_ddp",
    "tune_fsdp",
    "unoptimize",
    "verify",
    "watch_ranks",
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
        ``PTAC_CALIBRATION``, else the table committed for this CPU family. One that
        ``--device cuda`` wrote decides on GPUs of that name and leaves CPUs theirs.

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
    with _switch.locked():
        config = _environment.config()
        names = features or _environment.features()
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
            ddp=held.ddp,
            watch=held.watch,
            training=held.training,
            parallelism=held.parallelism,
            automatic=held.automatic,
        )
        if held.training is not None:
            config = replace(config, numerics="fast")
        if numerics is not None:
            config = replace(config, numerics=_options.numerics_checked(numerics))
        if verify is not None:
            config = replace(config, verify=_options.verify_checked(verify))
        if calibration is not None:
            path = _options.calibration_checked(calibration)
            config = replace(config, calibration=path)
        return _switch.enable(config, _options.strict_checked(strict))


disable_operator_fusion = disabler(
    "operator_fusion", "Switch operator fusion off and restore what it changed."
)
disable_memory_pool = disabler(
    "memory_pool",
    """New storages come from libc; those of the pool return when they are freed.

    While ``memory_reuse`` is on, it keeps the pool on, with the options it has.
    """,
)
disable_memory_reuse = disabler(
    "memory_reuse",
    "Autograd keeps what it saves; what is saved already is still given back.",
)
disable_adaptive_lr = disabler(
    "adaptive_lr", "Rates are the user's from the next step on, as if never multiplied."
)
disable_data_pipeline = disabler(
    "data_pipeline",
    "Loaders fetch as stock, iterators under way too: the same batches.",
)
disable_graph_optimization = disabler(
    "graph_optimization",
    "Optimized modules and functions run eagerly, until the switch is on again.",
)
disable_model_quantization = disabler(
    "model_quantization",
    """Quantized modules compute by their dequantized weights: correct, and slow.

    They stay quantized; :func:`dequantize_model` makes them float again.
    """,
)
disable_data_parallelism = disabler(
    "data_parallelism",
    """DataParallel is torch's own from the next call on; threads are as before.

    The process group stays until the process ends, if it was made by us.
    """,
)


def is_enabled(name: str) -> bool:
    """Whether this feature is active.

    Raises
    ------
    ValueError, TypeError
        There is no such feature.
    """
    _options.names_checked((name,))
    return _switch.is_active(name)


def verify(
    model: Callable[..., Any], *inputs: Any, backward: bool = True
) -> Verification:
    """Run a model by stock and accelerated and hold both against float64.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Left as it was: parameters, buffers, gradients, random state. So is the module
        of a bound method; what another callable uses is run itself.
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
        is next to zero, stock's too. Where max pooling picked another of equal numbers
        than stock, gradients are compared at that position, and the text says so.
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

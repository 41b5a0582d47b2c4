"""What users call; importing this needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

from pai_torchacc import _counters, _host, _options, _switch
from pai_torchacc._switch import Handle
from pai_torchacc.fusion import precision

if TYPE_CHECKING:
    from torch import nn

    from pai_torchacc.quantization.report import QuantizationReport

NAME = "model_quantization"

_M = TypeVar("_M", bound="nn.Module")


def enable_model_quantization(training: Literal["bf16"] | None = None) -> Handle:
    """Run quantized modules by int8 kernels, and load int8 checkpoints anywhere.

    By name only; :func:`quantize_model` and :func:`load_quantized` do it where it is
    not done. While it is on, ``load_state_dict`` of a float model takes the checkpoint
    of a quantized one, and an optimizer that steps parameters which quantization has
    taken out of a model is warned about, once.

    Parameters
    ----------
    training : {"bf16"}, optional
        Run linear, convolution and attention operators of float models in bfloat16,
        with float32 weights, in training and inference, where the calibration table
        says that it is faster on this CPU: ``numerics="fast"`` under another name.
        Switches ``operator_fusion`` on as well; disabling takes both back. The status
        says under ``training`` where nothing comes of it and why.

    Raises
    ------
    ValueError, TypeError
        ``training`` is something else.
    """
    asked = _options.training_checked(training)
    change = precision.asked if asked else precision.given_back
    return _switch.enable_one(NAME, change, training=asked)


@contextmanager
def _switched_on() -> Iterator[None]:
    """Within, and afterwards unless there was an error, the switch is on.

    Calls that we make ourselves are not in the user's report.
    """
    was_asked_for = NAME in _switch.current().features
    if not _switch.is_active(NAME):
        _switch.enable_one(NAME)
    c = _host.loaded()
    try:
        with _counters.left_out(c) if c else nullcontext():
            yield
    except BaseException:
        if not was_asked_for:
            _switch.disable(NAME)
        raise


def quantize_model(  # noqa: PLR0913 as many as there are choices
    model: _M,
    sample: Any = None,
    *,
    method: Literal["auto", "int8", "fp8", "weight_only"] = "auto",
    dtype: Literal["int8", "fp8"] = "int8",
    include: Iterable[str | type[nn.Module]] | None = None,
    exclude: Iterable[str | type[nn.Module]] = (),
    guard: float = 0.01,
    keep_master: bool = False,
    measure: bool = False,
) -> _M:
    """Make a model's Linear, Conv2d, Embedding and MultiheadAttention int8, in place.

    Or its Linear layers fp8, for CUDA devices that multiply it.

    Modules stay the objects that they are, with their names, hooks and biases; their
    classes become subclasses, and ``weight`` reads as a dequantized copy. Weights have
    one scale for each output channel; inputs are quantized within each call, by row or
    image, so that nothing has to be calibrated. Layers that cannot be int8 (subclasses,
    parametrized, other dtypes and devices, recurrent, shared with such) stay float and
    the report says why. A model that has int8 layers is left as it is. Convert while no
    other thread uses the model.

    Parameters
    ----------
    model : nn.Module
        On the CPU, in float32, or on a CUDA device, also in float16 or bfloat16; mostly
        in eval mode, since int8 weights do not train.
    sample : optional
        What the model is called with to compare before and after: a tensor; a tuple or
        list of arguments; a dict of keyword arguments; or an iterable of these. Runs
        in eval mode without gradients; random state and buffers are put back.
    method : {"auto", "int8", "fp8", "weight_only"}
        Which layers and kinds of call are quantized. ``"auto"``: those that the
        calibration table says are faster, or on CUDA a model of bytes and launches.
        ``"int8"``, ``"fp8"``: all that can be, in this format. ``"weight_only"``: all
        are stored quantized and computed in float32, which is slow and most accurate.
    dtype : {"int8", "fp8"}
        The format of ``"auto"`` and ``"weight_only"``. ``"fp8"`` is of Linear layers
        whose inputs and outputs are multiples of 16, by e4m3 numbers. It is multiplied
        on CUDA devices of compute capability 9.0 with cuBLASLt 12.9 or newer, and runs
        dequantized elsewhere.
    include, exclude : iterable of str or module classes
        Only these, all but these: names, as ``named_modules()`` gives them, of a
        module or what it is in, and patterns as in ``fnmatch``.
    guard : float
        With a sample: how much may change. Where outputs have classes (two dimensions
        or more; the last, or the second of four, longer than 1), the share of positions
        whose largest class is another one; else the power of the difference in units of
        the output's power. The layers with the worst output return to float, an
        eighth of them at a time, until it holds.
    keep_master : bool
        Keep the float32 parameters, so that :func:`dequantize_model` is bit-exact.
    measure : bool
        Time each layer in float and quantized; with ``method="auto"`` that decides
        instead of the table.

    Returns
    -------
    nn.Module
        The same object.

    Raises
    ------
    ValueError, TypeError
        An option is wrong, the model has no layer that can be int8, or it does not take
        the sample. The model is as it was.
    """
    from pai_torchacc.quantization import conversion

    conversion.checked_model(model)
    options = conversion.Options(
        method, dtype, include, exclude, guard, keep_master, measure
    )
    with _switched_on():
        return conversion.quantize(model, sample, options)


def dequantize_model(model: _M) -> _M:
    """Make quantized modules float again, in place.

    With ``keep_master=True`` they get their own parameters back, bit for bit; else
    parameters of the dequantized numbers. What was tied is tied. A float model is left
    as it is. Optimizers have to be made anew, unless masters were kept. Convert while
    no other thread uses the model.

    Returns
    -------
    nn.Module
        The same object.
    """
    from pai_torchacc.quantization import conversion

    return conversion.dequantize(conversion.checked_model(model))


def quantization_report(model: nn.Module) -> QuantizationReport:
    """Tell what is int8 in a model, what not and why, bytes, accuracy and speed.

    Returns
    -------
    QuantizationReport
        ``str()`` of it is a table, ``.as_dict()`` and ``.as_json()`` the same for
        programs: bytes of the state dict in float and now, and in memory; per layer its
        state, reason, buckets, SQNR of its weight and, with a sample, of its output;
        agreement on the sample; whether :func:`dequantize_model` is bit-exact.
    """
    from pai_torchacc.quantization import conversion, report

    return report.report(conversion.checked_model(model))


def dequantize_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a quantized model's ``state_dict()`` into one for the float model.

    Needs torch only, neither the extension nor a switch. What is not int8 is handed on
    as it is.

    Returns
    -------
    dict
        A new one, with ``weight`` in place of ``weight_int8`` and ``weight_scale``.

    Raises
    ------
    ValueError, TypeError
        An int8 weight and its scales do not fit.
    """
    from pai_torchacc.quantization import states

    return states.dequantize_state_dict(state_dict)


def save_quantized(
    model: nn.Module, file: str | os.PathLike[str] | IO[bytes], compress: bool = True
) -> None:
    """Write a model's tensors to one file without pickles.

    A zip archive of a JSON header and the tensors' bytes, int8 weights coded by zlib's
    Huffman coder. A file of that name is replaced when all is written.

    Parameters
    ----------
    model : nn.Module
        Quantized or not.
    file : path or binary file
        Where to.
    compress : bool
        Code the tensors; without it they are stored as they are.

    Raises
    ------
    ValueError
        The model's state has something that is no dense tensor.
    OSError
        The file cannot be written.
    """
    from pai_torchacc.quantization import conversion, files

    files.save(conversion.checked_model(model), file, compress)


def load_quantized(model: _M, file: str | os.PathLike[str] | IO[bytes]) -> _M:
    """Load what :func:`save_quantized` wrote, into a model of the same structure.

    The same layers become int8 and are computed alike, whatever table this machine has,
    so that the numbers are those of the saved model. Layers of the model that are
    int8 and were float become float.

    Returns
    -------
    nn.Module
        The model that was given.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is damaged or for another model, which is as it was.
    """
    from pai_torchacc.quantization import conversion, files

    conversion.checked_model(model)
    with _switched_on():
        return files.load(model, file)

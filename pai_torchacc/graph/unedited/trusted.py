"""Which functions need no proof: those of torch and Python that only compute.

Files of torch are on the list whose functions read nothing that outlives a call but
modules, which are under guard, settings that plans compare, and such that are no matter
on a CPU; they write nothing but tensors. Functions of C are told by where they belong.
"""

from __future__ import annotations

import functools
import os
import string
import sysconfig
from collections import OrderedDict
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.graph.unedited.instructions import words

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_OURS = f"{Path(__file__).parents[2]}{os.sep}"
_PYTHON = f"{sysconfig.get_paths()['stdlib']}{os.sep}"

_LAYERS = f"nn{os.sep}modules{os.sep}"
_FOLDERS = (_LAYERS, f"_library{os.sep}")
"""Of torch: layers, and what modes that look on are told of operators."""

_MODULE = words("""
    _wrapped_call_impl _call_impl __getattr__ parameters named_parameters
    _named_members children named_children modules named_modules buffers named_buffers
    get_submodule get_parameter get_buffer <lambda> <genexpr>
    """)
"""Of ``nn.Module`` itself: what looks, and what calls."""

_TENSOR = words("""
    split unflatten norm stft istft unique unique_consecutive rsub __rsub__ __rdiv__
    __rtruediv__ __itruediv__ __pow__ __ipow__ __rmod__ __format__ __rpow__ __floordiv__
    __rfloordiv__ __rlshift__ __rrshift__ __rmatmul__ __len__ __iter__ __contains__
    __abs__ __neg__ __pos__ dim_order refine_names align_to rename detach wrapped
    _handle_torch_function_and_wrap_type_error_to_not_implemented
    """)
"""Of ``Tensor``: what computes, or asks for sizes."""

_FILES: dict[str, frozenset[str] | None] = {
    "__init__.py": frozenset({"_assert", "is_tensor", "sym_int", "sym_max", "sym_min"}),
    "_VF.py": None,
    "_jit_internal.py": frozenset(
        {"is_scripting", "fn", "boolean_dispatch", "is_tracing", "<lambda>"}
    ),
    "_ops.py": None,
    "_tensor.py": _TENSOR,
    "_utils_internal.py": frozenset({"wrapper_function"}),
    "autograd/grad_mode.py": None,
    "backends/__init__.py": frozenset({"__get__"}),
    "backends/mha/__init__.py": frozenset({"get_fastpath_enabled"}),
    "compiler/__init__.py": frozenset(
        {"is_compiling", "is_dynamo_compiling", "is_exporting"}
    ),
    "functional.py": None,
    "jit/_trace.py": frozenset({"is_tracing"}),
    "nn/_reduction.py": None,
    "nn/functional.py": None,
    "nn/modules/module.py": _MODULE,
    "nn/parameter.py": frozenset({"__instancecheck__"}),
    "overrides.py": None,
    "utils/_contextlib.py": None,
    "utils/_python_dispatch.py": None,
}
"""Of torch; None: all of the file."""

_OF_PYTHON = frozenset({"contextlib.py", "typing.py", "enum.py", "types.py", "abc.py"})
_FROZEN = frozenset(
    {"<frozen _collections_abc>", "<frozen abc>", "<frozen importlib._bootstrap>"}
)

_IMPORT = "<frozen importlib"

_BUILTINS = words("""
    abs all any ascii bin callable chr divmod format getattr hasattr hex isinstance
    issubclass iter len max min next oct ord pow repr round sorted sum
    """)

_OF_C = words("""
    _get_tracing_state _has_torch_function_unary _has_torch_function_variadic
    _has_torch_function _log_api_usage_once get_default_dtype
    is_autocast_cache_enabled is_autocast_enabled
    is_autocast_cpu_enabled is_grad_enabled _is_torch_function_enabled
    """)
"""Of ``torch._C``: settings that plans compare, or stand aside for."""

_WITHOUT_OPERATOR = words("""
    tensor as_tensor promote_types can_cast is_floating_point is_complex
    is_signed is_same_size broadcast_tensors bool byte char cpu double float half int
    long short bfloat16 dim get_device element_size numel nelement ndimension size
    stride type is_contiguous contiguous new new_tensor chunk has_names is_nonzero
    is_conj is_neg
    """)
"""Of torch's functions and methods: those that are no operators and yet plain."""

_NOT_PLAIN = words("""
    requires_grad_ retain_grad retains_grad storage_offset is_pinned pin_memory
    data_ptr is_leaf output_nr _version set_ set_data rename_ from_file _backward
    is_inference record_stream
    """)
"""Operators, by name, that are not."""

_IMMUTABLE = (str, bytes, int, float, complex, tuple, range, slice, frozenset)
CONTAINERS = (list, dict, set, OrderedDict)

_FORMATS = frozenset({"format", "format_map"})
"""Methods of texts that may ask others' attributes."""

_ASKS = set(".[")
"""By which the fields of a text ask for attributes and items."""

_fields = string.Formatter().parse

_CLASSES = frozenset(
    {
        *(int, float, bool, complex, str, bytes, bytearray, tuple, list, dict, set),
        *(frozenset, range, slice, zip, enumerate, reversed, map, filter, type),
        *(object, super, property, staticmethod, classmethod, type(None)),
        *(OrderedDict, functools.partial, FunctionType, MethodType),
        *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format),
        *(torch.finfo, torch.iinfo),
    }
)


def is_trusted(code: CodeType) -> bool:
    """A Python function's code is torch's, ours or Python's own, and on the list."""
    file = code.co_filename
    if file.startswith(_TORCH):
        inside = file.removeprefix(_TORCH)
        key = inside.replace(os.sep, "/")
        if key in _FILES:
            names = _FILES[key]
            return names is None or code.co_name in names
        return inside.startswith(_FOLDERS)
    if is_ours(code):
        return True
    return file in _FROZEN or file.removeprefix(_PYTHON) in _OF_PYTHON


def is_ours(code: CodeType) -> bool:
    """It is of this package."""
    return code.co_filename.startswith(_OURS)


def library_of(code: CodeType) -> str | None:
    """What an unknown function belongs to, where it is not the program's."""
    file = code.co_filename
    if file.startswith(_TORCH):
        return "torch"
    is_pythons = file.startswith(_PYTHON) and "-packages" not in file
    return "Python" if is_pythons or file.startswith("<frozen") else None


def is_of_recorder(frame: FrameType) -> bool:
    """A library's function, one made of text, or an import works for our recorder."""
    inner: FrameType | None = frame
    while inner is not None:
        if _is_on_the_way(inner):
            return True
        code, inner = inner.f_code, inner.f_back
        if is_ours(code):  # but for what begins the call
            return not code.co_filename.endswith("planned.py")
        is_imported = inner is not None and inner.f_code.co_filename.startswith(_IMPORT)
        if not (is_imported or _is_made(code) or library_of(code)):
            return False
    return False


def _is_on_the_way(frame: FrameType) -> bool:
    """The dispatcher calls our mode, out of Dynamo's sight."""
    if not frame.f_code.co_filename.startswith(f"{_TORCH}_compile.py"):
        return False
    code = getattr(frame.f_locals.get("fn"), "__code__", None)
    return code is not None and is_ours(code)


def _is_made(code: CodeType) -> bool:
    return code.co_filename == "<string>"


def reads_settings(code: CodeType) -> bool:
    """It is a layer's or a function's of torch, which others may have patched."""
    inside = code.co_filename.removeprefix(_TORCH)
    is_of_calls = inside.endswith(("module.py", "container.py"))
    return not is_of_calls and inside.startswith(
        (_LAYERS, "nn/functional.py", "backends")
    )


def is_of_torch(name: str | None) -> bool:
    """A module of this name belongs to torch."""
    return f"{name}.".startswith("torch.")


def is_class(cls: type) -> bool:
    """Calling it makes something of its arguments, and does nothing else."""
    return cls in _CLASSES or (
        cls.__module__ in ("itertools", "builtins")
        and (cls.__module__ == "itertools" or issubclass(cls, BaseException))
    )


def may_call(function: Any) -> bool:
    """A function of C computes, and neither reads nor changes what is hidden."""
    owner, name = getattr(function, "__self__", None), function.__name__
    qualname = getattr(function, "__qualname__", "")
    if isinstance(owner, ModuleType):
        return _may_call_of(owner.__name__, name)
    if isinstance(owner, type):
        return name == "__new__" or (owner is dict and name == "fromkeys")
    if qualname.startswith("_VariableFunctionsClass."):
        return _is_operator(name)
    if type(owner).__module__.startswith("pybind11"):
        return name in _OF_C
    if name == "format" and isinstance(owner, str):
        return not any(_ASKS & set(field or "") for _, field, *_ in _fields(owner))
    if owner is None:  # of a class, by name
        return _may_call_of_class(function, name)
    return _may_call_on(type(owner), name)


def _may_call_of(module: str, name: str) -> bool:
    if module == "builtins":
        return name in _BUILTINS
    if module in ("math", "_operator", "cmath", "pai_torchacc._C"):
        return True
    if module in ("_functools", "_abc"):
        return name in ("reduce", "_abc_instancecheck", "_abc_subclasscheck")
    if module in ("torch._C._nn", "torch._C._linalg", "torch._C._special"):
        return name.startswith(("linalg_", "special_")) or _is_operator(name)
    if module == "torch._C._fft":
        return True
    return module == "torch._C" and name in _OF_C


def _may_call_of_class(function: Any, name: str) -> bool:
    owner = getattr(function, "__objclass__", None)
    return owner is not None and _may_call_on(owner, name)


def _may_call_on(kind: type, name: str) -> bool:
    if issubclass(kind, torch._C.TensorBase):
        is_exact = kind in (Tensor, torch.nn.Parameter, torch._C.TensorBase)
        return is_exact and (name.startswith("__") or _is_operator(name))
    if issubclass(kind, _IMMUTABLE):
        return not (issubclass(kind, str) and name in _FORMATS)
    is_container = issubclass(kind, CONTAINERS)
    return is_container or name in ("send", "throw", "close", "__init__")


@functools.cache
def _is_operator(name: str) -> bool:
    if name in _NOT_PLAIN:
        return False
    return name in _WITHOUT_OPERATOR or hasattr(torch.ops.aten, name)

"""Meeting the torch of this process: loading the extension against it, once.

Nothing here changes torch. What differs between versions of torch is found out by
asking it, and what cannot be found out leaves a part of the package inactive with a
reason. It is asked in a thread of its own, where no mode, device, autocast or transform
of the program is in force, and with samples that do not depend on defaults.
"""

from __future__ import annotations

import _thread
import functools
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

OLDEST_TORCH = (2, 11)

_state: dict[str, Any] = {}

_T = TypeVar("_T")


class Unavailable(RuntimeError):
    """Nothing can be accelerated here; the text says why."""


class NotNow(Unavailable):
    """The same, but another attempt may go better."""


_PATIENCE_S = 5
"""For which an interrupt waits for the thread aside, which it cannot reach."""


@contextmanager
def muted() -> Iterator[None]:
    """Nothing of ours runs in this thread, or counts."""
    c = loaded()
    held = [c.thread_mute()] if c else []
    try:
        yield
    finally:
        held.clear()  # also where a traceback keeps this frame


def aside(ask: Callable[[Any, Any], _T], c: Any) -> _T:
    """``ask(c, torch)`` in a new thread, which everything is ordinary in.

    Modes, devices, autocast, transforms and ``disabled()`` belong to threads. Nobody
    has patched this kind, and an interrupt finds no lock of Python code held.
    """
    torch = sys.modules["torch"]
    if _is_importing(torch):
        # The other thread would wait for the import, and the import for us.
        raise NotNow("torch is still being imported")
    answers: list[_T] = []
    errors: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            answers.append(ask(c, torch))
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
        done.acquire()
        if errors:
            raise errors[0]
    except RuntimeError as error:
        raise NotNow(f"torch could not be asked how it works: {error}") from error
    except BaseException:
        if not answers and not errors:
            # What is undone next should not be undone under its feet.
            done.acquire(timeout=_PATIENCE_S)
        raise
    finally:
        errors.clear()  # which their tracebacks lead back to
    return answers[0]


def _is_importing(torch: Any) -> bool:
    return bool(getattr(torch.__spec__, "_initializing", False))


def torch_version(text: str) -> tuple[int, int]:
    """Major and minor number of a version such as ``2.13.0+cpu``."""
    major, minor = text.split("+", maxsplit=1)[0].split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def extension() -> Any:
    """The C extension, or :class:`Unavailable` where the package has none."""
    try:
        from pai_torchacc import _C
    except ImportError as error:
        raise Unavailable(f"no compiled extension {_where(error)}") from None
    return _C


def compiled() -> Any | None:
    """The C extension where the package has one."""
    try:
        return extension()
    except Unavailable:
        return None


def _where(error: ImportError) -> str:
    package = Path(__file__).parent
    if (package.parent / "setup.py").exists() and not any(package.glob("_C.*so")):
        return (
            f"in the source folder {package.parent}: start from another folder, "
            "or run `pip install -e .` there"
        )
    version = sys.version.split()[0]
    return f"for {platform.system()} {platform.machine()}, {version}: {error}"


def load() -> Any:
    """Load the extension against the installed torch and return it.

    Raises
    ------
    Unavailable
        torch is missing or too old, or lacks a symbol that everything rests on.
    """
    if "error" in _state:
        raise Unavailable(_state["error"])
    if "c" not in _state:
        try:
            _state["c"] = _load()
        except NotNow:
            raise
        except Unavailable as error:
            _state["error"] = str(error)
            raise
    return _state["c"]


def loaded() -> Any | None:
    """The extension if it has met torch already."""
    return _state.get("c")


def ask(name: str, *args: Any) -> Any:
    """What a function of the extension says; None where there is no extension."""
    try:
        c = learnt()
    except Unavailable:
        return None
    return getattr(c, name)(*args)


def _load() -> Any:
    c = extension()
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"torch cannot be imported: {error}") from None
    if torch_version(torch.__version__) < OLDEST_TORCH:
        raise Unavailable(
            f"torch {torch.__version__} is too old: "
            f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer is needed"
        )
    limit_isa(c)
    missing = c.load(
        str(Path(torch.__file__).parent / "lib"), os.environ.get("PTAC_HIDE_SYMBOLS")
    )
    if missing:
        raise Unavailable(f"torch {torch.__version__} does not offer {missing}")
    if _is_importing(torch):
        raise NotNow("torch is still being imported")
    return c


def limit_isa(c: Any) -> None:
    """Leave out the rows that ``PTAC_CPU_ISA`` forbids."""
    if isa := os.environ.get("PTAC_CPU_ISA"):
        try:
            c.limit_isa(isa)
        except ValueError as error:
            raise ValueError(f"PTAC_CPU_ISA: {error}") from None


def _learn_tensors(c: Any, torch: Any) -> bool:
    """Show the extension where tensors keep what lean call paths look at."""
    try:
        with torch.inference_mode():
            inference, state = _empty(torch), c.thread_state()
        samples = [
            _empty(torch),
            inference,
            torch.nn.Parameter(_empty(torch)),
            _empty(torch, torch.int64).view(2, 1),
            torch.empty(2, dtype=torch.float32, device="meta"),
            torch._neg_view(_empty(torch)),
            _empty(torch, torch.complex64).conj(),
        ]
        keys = [torch._C._dispatch_keys(sample).raw_repr() for sample in samples]
        c.lend(
            steal_tensor=torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr,
            increment_version=torch.autograd.graph.increment_version,
            len_function_modes=torch._C._len_torch_function_stack,
            top_hooks=torch._C._autograd._top_saved_tensors_default_hooks,
            profiler_enabled=torch._C._autograd._profiler_enabled,
            forward_ad=vars(torch.autograd.forward_ad),
        )
    except (AttributeError, RuntimeError):
        return False
    rows = [
        (s, s._cdata, k & 0xFFFFFFFFFFFFFFFF)
        for s, k in zip(samples, keys, strict=True)
    ]
    if not c.tensor_learn(torch.Tensor, torch.nn.Parameter, rows) or state is None:
        return False
    c.thread_learn(*state, _key(torch, "Named"), _key(torch, "AutocastCUDA"))
    c.cuda_keys_learn(*_cuda_keys(torch, keys[0], keys[1]))
    return True


def _cuda_keys(torch: Any, plain: int, inference: int) -> tuple[int, int]:
    """The key sets of plain tensors on CUDA devices, of which none need exist.

    Put together as those of the CPU's are, which are known; zeros where that fails.
    """

    def key_sets(device: str) -> tuple[int, int]:
        names = (device, f"Autocast{device}", f"Autograd{device}", "ADInplaceOrView")
        sets = [torch._C.DispatchKeySet(torch._C._parse_dispatch_key(n)) for n in names]
        of_inference = sets[0] | sets[1]
        of_plain = of_inference | sets[2] | sets[3]
        return of_plain.raw_repr(), of_inference.raw_repr()

    try:
        return key_sets("CUDA") if key_sets("CPU") == (plain, inference) else (0, 0)
    except (AttributeError, RuntimeError, TypeError):
        return 0, 0


def _empty(torch: Any, dtype: Any = None) -> Any:
    return torch.empty(2, dtype=dtype or torch.float32, device="cpu")


def _key(torch: Any, name: str) -> int:
    """A dispatch key as a set; 0 where torch lacks it, as it does Named since 2.13."""
    try:
        key = torch._C._parse_dispatch_key(name)
    except RuntimeError:
        return 0
    return torch._C.DispatchKeySet(key).raw_repr() if key is not None else 0


def _learn_rounding(c: Any, torch: Any) -> bool:
    """Show the extension how torch rounds; whether it knows that way of rounding."""
    generator = torch.Generator("cpu").manual_seed(0)
    single, double = (
        {"dtype": d, "device": "cpu"} for d in (torch.float32, torch.float64)
    )
    a, b = (torch.randn(1024, generator=generator, **single) for _ in range(2))
    x = torch.rand(4096, generator=generator, **double)
    x = x * torch.exp2(torch.arange(4096, **double) % 120 - 60.0)
    with torch.no_grad():
        knows_sum = c.learn_fma(a, b, 0.3, torch.add(a, b, alpha=0.3))
        # In pieces for which MKL starts no threads: those cost up to 10 ms a call.
        return knows_sum and all(
            c.learn_sqrt(s, torch.cat([piece.sqrt() for piece in s.split(64)]))
            for s in (x.float(), x)
        )


def has_lean_paths() -> bool:
    """Whether call paths below Python's level may look into tensors."""
    if "lean" not in _state:
        _state["lean"] = aside(_learn_tensors, load())
    return bool(_state["lean"])


def knows_rounding() -> bool:
    """Whether rows that must round as torch does may run at all."""
    if "rounding" not in _state:
        _state["rounding"] = has_lean_paths() and aside(_learn_rounding, load())
    return bool(_state["rounding"])


@functools.cache
def learns_type_versions(c: Any) -> bool:
    """Whether the extension can tell that a class is as it was."""
    base = type("Base", (), {"name": 0})
    derived = type("Derived", (base,), {})
    return bool(c.type_version_learn(base, derived, "name"))


def learnt() -> Any:
    """The extension as :func:`load` gives it, shown how torch's tensors look."""
    c = load()
    has_lean_paths()
    return c

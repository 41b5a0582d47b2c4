"""Importing the package changes nothing in the process."""

from __future__ import annotations

import switching


def test_importing_has_no_effects() -> None:
    program = """
import sys
import pai_torchacc
assert "torch" not in sys.modules and "pai_torchacc._C" not in sys.modules
import footprint, torch, threading
ops = ["aten::max_pool2d_with_indices", "aten::avg_pool2d", "aten::_log_softmax"]
for name in [n for n in sys.modules if n.startswith("pai_torchacc")]:
    del sys.modules[name]
before, threads = footprint.take(ops), threading.active_count()
modules = set(sys.modules)
import os
os.register_at_fork = None  # nobody calls it
import pai_torchacc
from pai_torchacc import _C
footprint.assert_same(before, footprint.take(ops))
assert threading.active_count() == threads
print(sorted(n for n in set(sys.modules) - modules if "pai_torchacc" not in n))
"""
    assert switching.python(program, fresh=True) == "[]\n"


def test_only_one_interpreter_has_the_extension() -> None:
    """What it remembers are objects of the interpreter that imported it first."""
    program = """
import importlib, sys
interpreters = importlib.import_module(
    "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
)
from pai_torchacc import _C
del sys.modules["pai_torchacc._C"]
from pai_torchacc import _C
options = ["legacy"] if sys.version_info >= (3, 13) else []
other = interpreters.create(*options)
done = interpreters.run_string(other, '''
import sys
sys.path[:] = %r
try:
    import pai_torchacc._C
except ImportError as error:
    print(error)
''' % sys.path)
assert done is None, done
"""
    found = switching.python(program, fresh=True)
    assert found == "pai_torchacc._C can be imported by one interpreter of a process\n"

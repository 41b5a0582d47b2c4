"""For Python processes under ``python -m pai_torchacc run``, and ranks of ``launch``.

Enables with torch, then gives way to the sitecustomize that this one hides, if any.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_here = str(Path(__file__).parent)


def _run_hidden() -> None:
    rest = [entry for entry in sys.path if entry != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    from pai_torchacc.commands.run import start_child
except ImportError:
    pass  # another Python, without this package
else:
    start_child()
_run_hidden()

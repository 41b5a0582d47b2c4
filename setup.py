"""Builds the one C extension. Needs a C compiler; neither torch nor numpy.

The extension uses CPython's stable ABI and finds torch when it runs, so one wheel
serves CPython >= 3.11 and torch >= 2.11. Where it cannot run (not Linux, or a
free-threaded CPython) the package installs without it and says so.
"""

import platform
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent

supported = (
    sys.platform == "linux"
    and platform.machine() in ("x86_64", "aarch64")
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)

extension = Extension(
    "pai_torchacc._C",
    sources=sorted(str(p.relative_to(HERE)) for p in HERE.glob("csrc/**/*.c")),
    depends=sorted(str(p.relative_to(HERE)) for p in HERE.glob("csrc/**/*.h")),
    include_dirs=["csrc"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    # -fexceptions: torch's C++ errors pass through our frames, which release what they
    # own. -ffp-contract=off: arithmetic is what the source says, so that results equal
    # those of stock bit for bit.
    extra_compile_args=[
        "-std=gnu11",
        "-O2",
        "-fexceptions",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fvisibility=hidden",
        "-ftls-model=initial-exec",
        "-pthread",
        "-Wall",
        "-Wextra",
    ],
    extra_link_args=["-Wl,--as-needed", "-Wl,-z,relro,-z,now"],
    libraries=["m"],
)

setup(
    ext_modules=[extension] if supported else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if supported else {},
)

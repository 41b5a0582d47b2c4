"""Builds the one C extension. Needs a C compiler; neither torch nor numpy.

The extension uses CPython's stable ABI and finds torch when it runs, so one wheel
serves CPython >= 3.11 and torch >= 2.11. Where it cannot run (not Linux, or a
free-threaded CPython) the package installs without it and says so.

Objects are kept in build/objects: what has not changed is not compiled again. CUDA
kernels are compiled where nvcc is found (tools/kernels.py); nothing else asks for it.
"""

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent.absolute()
CACHE = HERE / "build" / "objects"
sys.path.insert(0, str(HERE / "tools"))

from kernels import ship  # noqa: E402
from objects import Objects  # noqa: E402
from version import version  # noqa: E402

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
    # those of stock bit for bit. -g1: backtraces have lines. Python's own flags ask for
    # -g, which follows variables too: gcc takes twice as long for unrolled code.
    extra_compile_args=[
        "-std=gnu11",
        "-O2",
        "-g1",
        "-fexceptions",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fvisibility=hidden",
        "-ftls-model=initial-exec",
        "-pthread",
        "-Wall",
        "-Werror=implicit-function-declaration",
        "-Wextra",
    ],
    extra_link_args=["-Wl,--as-needed", "-Wl,-z,relro,-z,now"],
    libraries=["m"],
)


def missing() -> str | None:
    """What a build lacks here, in one line."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))[0]
    if shutil.which(compiler) is None:
        return f"a C compiler is needed: no {compiler} (Debian: apt install gcc)"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return (
            f"Python's headers are needed: no {headers / 'Python.h'} "
            "(Debian: apt install python3-dev)"
        )
    return None


class BuildExt(build_ext):
    """Compiles in parallel, and only what has changed, headers included."""

    def command(self, ext: Extension) -> list[str]:
        """What compiles a file. The tests compile by it too."""
        return [
            *self.compiler.compiler_so,
            *(f"-D{name}={value}" for name, value in ext.define_macros),
            *(f"-I{folder}" for folder in ext.include_dirs),
            *(f"-I{folder}" for folder in self.compiler.include_dirs),
            *ext.extra_compile_args,
        ]

    def build_extension(self, ext: Extension) -> None:
        """Compile and link the extension where setuptools wants it."""
        objects = Objects(CACHE, HERE, self.command(ext))
        self.compiler.link_shared_object(
            [str(o) for o in objects.compile(HERE / s for s in ext.sources)],
            self.get_ext_fullpath(ext.name),
            libraries=self.get_libraries(ext),
            extra_postargs=ext.extra_link_args,
            build_temp=self.build_temp,
            target_lang="c",
        )
        ship(HERE, CACHE, Path(self.get_ext_fullpath(ext.name)).parent / "_kernels")

    def copy_extensions_to_source(self) -> None:
        """Put what was built into this tree, of which an editable install runs."""
        super().copy_extensions_to_source()
        ship(HERE, CACHE, HERE / "pai_torchacc" / "_kernels")


class BuildPy(build_py):
    """Writes the version into what is installed."""

    def run(self) -> None:
        """Copy the package."""
        super().run()
        if not self.editable_mode:
            built = Path(self.build_lib, "pai_torchacc", "_version.py")
            name = self.distribution.get_version()
            built.write_text(
                f'"""The version of the package."""\n\n__version__ = "{name}"\n'
            )


# pip shows a line that ends the build; what setuptools prints before it stays short.
BUILDING = {"bdist_wheel", "build_ext", "editable_wheel"}
if supported and BUILDING.intersection(sys.argv) and (trouble := missing()):
    sys.exit(f"pai_torchacc: {trouble}")

setup(
    version=version(HERE),
    ext_modules=[extension] if supported else [],
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if supported else {},
)

"""Compile the Cython and C kernels; everything else about the package is in pyproject.toml.

Two environment variables change the build:

NMFSCALE_OPENMP=0   no OpenMP: the kernels run on one thread.
NMFSCALE_DEBUG=1    bounds checks in the Cython code, assertions and -O1 in the C code.
"""

import os
import sys
from glob import glob
from multiprocessing.pool import ThreadPool

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

OPENMP = os.environ.get("NMFSCALE_OPENMP", "1") != "0"
DEBUG = os.environ.get("NMFSCALE_DEBUG", "0") != "0"

# Each variant has its own build folder, so that switching between them never reuses an object.
BUILD = "build/" + ("debug" if DEBUG else "release") + ("" if OPENMP else "-serial")

# No -march and no -ffast-math: slices_*.c choose their instruction set themselves, and results
# must not depend on how the compiler reorders or contracts a sum.
COMPILE_ARGS = [
    # Python's own arguments ask for -g, which for these kernels is a third of the compiler's time.
    *(["-O1"] if DEBUG else ["-O3", "-g0"]),
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fstrict-overflow",  # against Python's own -fwrapv, which costs a sixth of the speed
]
OPENMP_ARGS = {  # platform: (compiler arguments, linker arguments)
    "darwin": (["-Xpreprocessor", "-fopenmp"], ["-lomp"]),
    "win32": (["-fopenmp"], ["-fopenmp"]),
}
OPENMP_COMPILE, OPENMP_LINK = (
    OPENMP_ARGS.get(sys.platform, (["-fopenmp"], ["-fopenmp"])) if OPENMP else ([], [])
)

HEADERS = sorted(glob("nmfscale/*/*.h") + glob("nmfscale/*/*.pxd"))

# wraparound stays off in a debug build too: there a negative index must be an error.
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "embedsignature": False,
}


def extension(source):
    """Describe the extension module of one .pyx file; `levels` alone links the C arithmetic."""
    name = os.path.splitext(source)[0].replace(os.sep, ".")
    arithmetic = sorted(glob("nmfscale/kernels/slices_*.c")) if name.endswith(".levels") else []
    return Extension(
        name,
        [source, *arithmetic],
        include_dirs=["nmfscale/kernels"],
        define_macros=[("NMFSCALE_OPENMP", str(int(OPENMP))), ("NMFSCALE_DEBUG", str(int(DEBUG)))],
        undef_macros=["NDEBUG"] if DEBUG else [],
        extra_compile_args=COMPILE_ARGS + OPENMP_COMPILE,
        extra_link_args=OPENMP_LINK,
        depends=HEADERS,
    )


class BuildExt(build_ext):
    """Compile extensions side by side, and the instruction sets of one: each takes a while."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count() or 1

    def build_extensions(self):
        if self.compiler.compiler_type == "msvc":
            raise CompileError("the kernels need GCC or Clang (on Windows: --compiler=mingw32)")
        compile_in_turn = self.compiler.compile

        def compile_side_by_side(sources, **options):
            with ThreadPool(min(len(sources), self.parallel)) as pool:
                objects = pool.map(lambda source: compile_in_turn([source], **options), sources)
            return [name for names in objects for name in names]

        self.compiler.compile = compile_side_by_side
        try:
            super().build_extensions()
        except (CompileError, LinkError) as error:
            if not OPENMP:
                raise
            remedy = "If the compiler has no OpenMP, set NMFSCALE_OPENMP=0 and build again."
            raise type(error)(f"{error}\n{remedy}") from error


setup(
    ext_modules=cythonize(
        [extension(source) for source in sorted(glob("nmfscale/*/*.pyx"))],
        build_dir=f"{BUILD}/cython",
        compiler_directives=DIRECTIVES,
    ),
    cmdclass={"build_ext": BuildExt},
    options={"build": {"build_base": BUILD}},
)

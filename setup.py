"""Compile the Cython and C kernels; all other package settings are in pyproject.toml.

Two environment variables change the build:

NMFSCALE_OPENMP=0   no OpenMP: the kernels run on one thread.
NMFSCALE_DEBUG=1    bounds checks in the Cython code, assertions and -O1 in the C code.
"""

import os
import shutil
import subprocess
import sys
from glob import glob
from multiprocessing.pool import ThreadPool

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

OPENMP = os.environ.get("NMFSCALE_OPENMP", "1") != "0"
DEBUG = os.environ.get("NMFSCALE_DEBUG", "0") != "0"

# Each variant has its own build folder, so that object files are never reused between variants.
BUILD = "build/" + ("debug" if DEBUG else "release") + ("" if OPENMP else "-serial")

# No -march, because slices_*.c select their own instruction sets. No -ffast-math, because the
# compiler must not reorder or contract sums. -g0, because Python's arguments include -g.
COMPILE_ARGS = [
    *([] if DEBUG else ["-g0"]),
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fstrict-overflow",  # overrides Python's -fwrapv, which makes the kernels a sixth slower
]

# The compiler takes most of the time of an installation: benchmarks/README.md has the seconds, and
# what was tried. Modules that call kernels but have no loops over numbers are compiled quickly.
OPTIMISATION = dict.fromkeys(["levels", "operands", "targets", "_memoryviews"], "-O1")

# Modules import what Cython generates for memoryviews from here, else each would compile it.
MEMORYVIEWS = "nmfscale.kernels._memoryviews"


def openmp_arguments():
    """Return compiler and linker arguments for OpenMP.

    Apple's compiler takes -fopenmp in its preprocessor only and comes without the library. That of
    Homebrew is not in a folder that compilers search. LDFLAGS may name another folder.
    """
    if not OPENMP:
        return [], []
    if sys.platform != "darwin":
        return ["-fopenmp"], ["-fopenmp"]
    compile_args, link_args = ["-Xpreprocessor", "-fopenmp"], ["-lomp"]
    if shutil.which("brew") and "LDFLAGS" not in os.environ:
        found = subprocess.run(["brew", "--prefix", "libomp"], capture_output=True, text=True)
        prefix = found.stdout.strip()
        if os.path.isdir(f"{prefix}/lib"):
            compile_args.append(f"-I{prefix}/include")
            link_args += [f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib"]
    return compile_args, link_args


OPENMP_COMPILE, OPENMP_LINK = openmp_arguments()

HEADERS = sorted(glob("nmfscale/*/*.h") + glob("nmfscale/*/*.pxd"))

# wraparound stays off in debug builds too, so that a negative index is an error.
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "embedsignature": False,
}


def extension(source):
    """Return the extension module of one .pyx file; only `levels` links the C arithmetic."""
    name = os.path.splitext(source)[0].replace(os.sep, ".")
    arithmetic = sorted(glob("nmfscale/kernels/slices_*.c")) if name.endswith(".levels") else []
    return Extension(
        name,
        [source, *arithmetic],
        include_dirs=["nmfscale/kernels", "nmfscale/counts"],
        define_macros=[("NMFSCALE_OPENMP", str(int(OPENMP))), ("NMFSCALE_DEBUG", str(int(DEBUG)))],
        undef_macros=["NDEBUG"] if DEBUG else [],
        extra_compile_args=COMPILE_ARGS + OPENMP_COMPILE,
        extra_link_args=OPENMP_LINK,
        depends=HEADERS,
    )


class BuildExt(build_ext):
    """Compile extensions, and the C files of an extension, in parallel."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count() or 1

    def build_extensions(self):
        if self.compiler.compiler_type == "msvc":
            raise CompileError("the kernels need GCC or Clang (on Windows: --compiler=mingw32)")
        compile_files = self.compiler.compile

        def compile_in_parallel(sources, extra_postargs=(), **options):
            def compile_one(source):
                name = os.path.splitext(os.path.basename(source))[0]
                level = "-O1" if DEBUG else OPTIMISATION.get(name, "-O3")
                return compile_files([source], extra_postargs=[*extra_postargs, level], **options)

            with ThreadPool(min(len(sources), self.parallel)) as pool:
                objects = pool.map(compile_one, sources)
            return [name for names in objects for name in names]

        self.compiler.compile = compile_in_parallel
        try:
            super().build_extensions()
        except (CompileError, LinkError) as error:
            if not OPENMP:
                raise
            remedy = "If the compiler lacks OpenMP, set NMFSCALE_OPENMP=0 and build again"
            remedy += ", or install it: brew install libomp." if sys.platform == "darwin" else "."
            raise type(error)(f"{error}\n{remedy}") from error


# `levels` takes longest.
SOURCES = sorted(
    glob("nmfscale/*/*.pyx"), key=lambda source: (not source.endswith("levels.pyx"), source)
)
MODULES = [extension(source) for source in SOURCES]
MODULES.append(
    Extension(MEMORYVIEWS, [f"{MEMORYVIEWS.replace('.', '/')}.c"], extra_compile_args=COMPILE_ARGS)
)

setup(
    ext_modules=cythonize(
        MODULES,
        build_dir=f"{BUILD}/cython",
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=MEMORYVIEWS,
    ),
    cmdclass={"build_ext": BuildExt},
    options={"build": {"build_base": BUILD}},
)

"""Who may import whom, which names say nothing, what tests change.  Reads the sources as text."""

import ast
import pkgutil
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

import nmfscale

# A room is a folder of the package, or a module at its top.  Every room may import itself.
MAY_IMPORT = {
    "kernels": set(),
    "terminal": set(),
    "counts": {"terminal"},
    "markup": set(),
    "storage": {"counts"},
    "readers": {"counts", "storage", "terminal"},
    "cluster": {"counts"},
    "engine": {"kernels", "counts", "storage", "cluster", "terminal"},
    "methods": {"kernels", "counts", "storage", "readers", "engine"},
    "models": {"methods", "engine", "readers", "counts", "storage", "markup", "terminal"},
    "inference": {
        "kernels", "counts", "storage", "methods", "models", "engine", "cluster", "readers",
        "markup", "terminal",
    },
    "datasets": {"counts", "readers"},
    "annotated": {"counts", "storage", "readers", "models", "inference"},
    "tl": {"counts", "storage", "readers", "models", "inference", "annotated"},
    "get": {"counts", "methods", "models", "annotated"},
    "pl": {"counts", "methods", "models", "annotated"},
    "likelihood": {"methods"},
    "experimental": {"models", "inference"},
    "extensions": {"kernels", "counts", "engine", "methods", "models"},
    "results": {"counts", "storage", "methods", "models", "inference", "datasets"},
    "errors": {"counts", "storage", "engine", "cluster"},
    "report": {
        "models", "inference", "methods", "engine", "storage", "counts", "annotated", "pl",
        "markup",
    },
    "testing": {
        "models", "inference", "engine", "readers", "counts", "pl", "tl", "get", "__init__",
    },
    "cli": {
        "__init__", "models", "inference", "methods", "engine", "readers", "storage",
        "cluster", "counts", "datasets", "pl", "report", "tl", "terminal",
    },
    "__init__": {
        "models", "inference", "methods", "readers", "datasets", "pl", "tl", "get", "report",
        "likelihood", "experimental", "results", "errors",
    },
    "__main__": {"cli"},
}  # fmt: skip
# Arithmetic in place of that of NumPy and SciPy: these rooms may use it, but call no kernels.
ARITHMETIC = tuple(f"nmfscale.kernels.{name}" for name in ("functions", "dense", "decompositions"))
USE_ARITHMETIC = {"counts", "datasets", "models", "report"}
# Parts of a room that are folders, and the other parts that each may import. "" is the files of the
# room that are in no folder. Every part may import itself.
PARTS = {
    "readers": {
        "sources": set(),
        "texts": {"sources"},
        "formats": {"sources", "texts"},
        "streams": {"sources", "formats"},
        "": {"sources", "texts", "formats", "streams"},
    },
    "methods": {
        "": set(),
        "weights": {""},
        "projection": {"", "weights"},
        "topics": {"", "weights"},
        "starts": {"", "projection", "topics"},
        "poisson": {"", "weights", "projection", "starts"},
        "variational": {"", "weights", "projection", "starts", "poisson"},
        "ssnmf": {"", "weights"},
        "anchors": {"", "weights"},
        "frobenius": {"", "weights", "starts", "anchors"},
    },
    "models": {"arguments": set(), "topics": set(), "": {"arguments", "topics"}},
    "inference": {
        "": set(),
        "design": {""},
        "results": {""},
        "replicates": {"", "design", "results"},
        "samples": {"", "design", "results", "replicates"},
        "groups": {"", "design", "results", "replicates"},
        "regression": {"", "design", "results", "replicates", "groups"},
        "features": {"", "design", "results", "replicates", "regression"},
        "batches": {"", "design", "results"},
        "choice": {"", "design", "results", "replicates", "samples"},
        "several_fits": {"", "results"},
    },
}
# The ways into the parts of `inference`: what other rooms may import of them, beside the results.
WAYS_IN = {
    "design": {"equal_weights", "groups", "loadings"},
    "results": {"files", "origin"},
    "replicates": {"refit", "jackknife", "selection_fits"},
    "samples": {"find_samples", "cluster_samples", "label_topics", "nearest_samples"},
    "groups": {"bootstrap", "balance", "correspondence", "statistics"},
    "regression": {"effects", "regression", "permutation"},
    "features": {
        "conditions",
        "differential",
        "differential_tests",
        "enrichment",
        "features_by_group",
        "noisy_pairs",
        "pseudobulk",
        "pyldavis",
        "seed_shares",
    },
    "batches": {"effects"},
    "choice": {
        "select_k",
        "stability",
        "topic_quality",
        "coherence",
        "hierarchy",
        "compare_fits",
        "modality_scores",
        "consensus",
    },
    "several_fits": {"cluster_topics", "fit_each"},
}
_OF_DASK = ("readers/streams/dask_array.py", "cluster/local.py", "cluster/pool.py")
ONLY_IN = {
    "dask": _OF_DASK,
    "distributed": _OF_DASK,
    "matplotlib": ("pl/",),
    "bokeh": ("report/", "pl/interactive.py"),
}
LATE = {"anndata", "bokeh", "dask", "distributed", "h5py", "matplotlib", "pandas", "tqdm", "zarr"}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc"}

# Names of variables that say nothing about what they hold, and the share of functions with one.
NAMES_THAT_SAY_NOTHING = {"found", "each", "known", "given"}
MOST_WITH_SUCH_A_NAME = 0.01

NOT_CODE = re.compile(r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'|#.*|\\\n')
IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*"
    r"(?:from[ \t]+(?P<module>[.\w]+)[ \t]*c?import\b[ \t]*(?P<names>\([^)]*\)|[^\n;]*)"
    r"|c?import[ \t]+(?P<modules>[^\n;]+))",
    re.MULTILINE,
)
INCLUDE = re.compile(r'(?:extern[ \t]+from|^[ \t]*#[ \t]*include)[ \t]+"([^"]+)"', re.MULTILINE)


def split_names(names):
    """Return the names of `a, b as c` or `(a,\\n b)`."""
    return [name.split()[0] for name in names.strip("() \t\n").split(",") if name.strip()]


def imported_modules(path, text):
    """Yield the absolute dotted name of everything that the file at `path` imports."""
    package = ("nmfscale", *PurePosixPath(path).parent.parts)
    for found in IMPORT.finditer(NOT_CODE.sub("", text)):
        if found["modules"]:
            yield from split_names(found["modules"])
            continue
        module = found["module"].lstrip(".")
        level = len(found["module"]) - len(module)
        parents = package[: len(package) - level + 1] if level else ()
        for name in split_names(found["names"]):
            yield ".".join((*parents, *([module] if module else []), name))


def room_of(path):
    """Return the room of a file, given its path inside the package."""
    first = PurePosixPath(path).parts[0]
    return first.split(".")[0]


def part_of(room, parts):
    """Return the part of a room that a file or module is in, given the names below the room."""
    return parts[0] if parts and parts[0] in PARTS.get(room, ()) else ""


def import_faults(path, text):
    """Yield what is wrong with the imports of one file."""
    room = room_of(path)
    for name in imported_modules(path, text):
        parts = name.split(".")
        if parts[0] != "nmfscale":
            if not path.startswith(ONLY_IN.get(parts[0], (path,))):
                places = ", ".join(ONLY_IN[parts[0]])
                yield f"{path} imports {name}, which belongs in {places} only"
            continue
        if room in USE_ARITHMETIC and name.startswith(ARITHMETIC):
            continue
        target = parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"
        if target != room and target not in MAY_IMPORT[room]:
            yield f"{path} imports {name}, but {room} may not import {target}"
        if target == "inference" != room and len(parts) > 3:
            if parts[3] not in WAYS_IN[parts[2]] and not parts[3].endswith("_result"):
                yield f"{path} imports {name}, which only {target} may import"
        if target == room and room in PARTS:
            own, part = part_of(room, PurePosixPath(path).parts[1:]), part_of(room, parts[2:])
            if part not in PARTS[room][own] | {own}:
                yield f"{path} imports {name}, but {own or room} may not import {part}"


def faults(sources):
    """Return what is wrong in the package, given as {path inside the package: text}."""
    found = []
    arithmetic = {
        PurePosixPath(path).name
        for path in sources
        if room_of(path) == "kernels" and path.endswith((".c", ".h"))
    }
    for path, text in sources.items():
        if PurePosixPath(path).stem.strip("_") in EMPTY_NAMES:
            found.append(f"{path}: the name says nothing about what is inside")
        if room_of(path) not in MAY_IMPORT:
            found.append(f"{path}: {room_of(path)} is not in the table MAY_IMPORT")
            continue
        if path.endswith((".py", ".pyi", ".pyx", ".pxd")):
            found.extend(import_faults(path, text))
        if room_of(path) != "kernels":
            found.extend(
                f"{path} includes {name}, but only kernels may"
                for name in INCLUDE.findall(text)
                if PurePosixPath(name).name in arithmetic
            )
    return found


def test_package_keeps_its_layers():
    package = Path(__file__).resolve().parents[2] / "nmfscale"
    if not package.is_dir():
        pytest.skip("the sources of the package are not beside the tests")
    sources = {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*"))
        if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".c", ".h"}
    }
    assert {"kernels", "counts", "engine", "methods", "models"} <= {
        room_of(path) for path in sources
    }
    assert not faults(sources)


def test_variables_say_what_they_hold():
    functions = [
        function
        for path in (Path(__file__).resolve().parents[2] / "nmfscale").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    with_such_a_name = [
        function.name
        for function in functions
        if NAMES_THAT_SAY_NOTHING
        & {getattr(node, "id", getattr(node, "arg", "")) for node in ast.walk(function)}
    ]
    assert len(with_such_a_name) <= MOST_WITH_SUCH_A_NAME * len(functions), with_such_a_name


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("counts/memory.py", "from ..engine import loop"),
        ("counts/memory.py", "from ..engine.loop import fit"),
        ("counts/memory.py", "import nmfscale.models.base as base"),
        ("counts/memory.py", "from nmfscale import models"),
        ("counts/memory.py", "from .. import PoissonNMF"),
        ("counts/memory.py", "import nmfscale"),
        ("counts/blocks.pyx", "from ..kernels.row cimport dot"),
        ("counts/blocks.pyx", "cimport numpy, nmfscale.kernels.row"),
        ("counts/blocks.pxd", "from ..kernels cimport row"),
        ("counts/blocks.pyx", 'cdef extern from "../kernels/simd.h":\n    pass'),
        ("kernels/rows.pyx", "from ..counts cimport blocks"),
        ("kernels/rows.pyx", "    from nmfscale.counts import blocks as layout"),
        ("models/base.py", "from ..kernels import rows"),
        ("models/base.py", "def fit(self):\n    from ..kernels.rows import em_rows"),
        ("models/base.py", "from .. import (\n    counts,  # fine\n    kernels,\n)"),
        ("models/base.py", "from .. \\\n    import kernels"),
        ("models/base.py", "if fast: from ..kernels import rows"),
        ("models/base.py", "x = 1; from ..kernels import rows"),
        ("inference/groups/balance.py", "from ...pl import structure_plot"),
        ("methods/poisson/state.py", "from ..variational import lda"),
        ("methods/poisson/state.py", "from ...models.base import CountModel"),
        ("pl/structure.py", "from ..inference import groups"),
        ("cli.py", "from .kernels.rows import build"),
        ("__init__.py", "from .cli import main"),
        ("__init__.pyi", "from .cli import main as main"),
        ("methods/poisson/alternating.py", "import os, dask.array as da"),
        ("readers/open.py", "def read():\n    from dask import delayed"),
        ("counts/memory.py", "from distributed import Client"),
        ("cli.py", "from matplotlib import pyplot"),
        ("engine/_utils.py", ""),
        ("models/common.pxd", ""),
        ("extras/new.py", ""),
    ],
)
def test_a_fault_is_found(path, text):
    assert len(faults({"kernels/simd.h": "", path: text})) == 1


def test_what_is_allowed_is_not_a_fault():
    sources = {
        "kernels/simd.h": '#include "other.h"',
        "kernels/slices_avx2.c": '#include "simd.h"',
        "kernels/rows.pyx": 'from .row cimport dot\ncdef extern from "simd.h" nogil:\n    pass',
        "counts/memory.py": "def layout(self):\n    from .blocks import Layout",
        "datasets/corpora.py": 'find_spec("dask")  # import dask would be slow',
        "readers/streams/dask_array.py": "import dask.array\nfrom distributed import Client",
        "methods/poisson/state.py": "from ...counts.memory import Counts\nfrom ... import kernels",
        "methods/ssnmf/descent.py": "from ..weights.entries import Entries\nfrom .. import factors",
        "models/base.py": '"""\nfrom ..kernels import rows\n"""\nfrom .. import engine, counts',
        "models/poisson_nmf.py": "from .base import CountModel",
        "pl/structure.py": "def draw():\n    import matplotlib.pyplot as plt",
        "cli.py": "from . import __version__, models, pl",
        "__init__.py": "from .models.poisson_nmf import PoissonNMF\nfrom . import pl",
    }
    assert faults(sources) == []


def changed_names(text):
    """Yield the dotted names of imported things that a program sets, or lets others set."""
    tree, origins = ast.parse(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname) for alias in node.names]
            origins |= {asname or name.split(".")[0]: asname and name for name, asname in names}
        elif isinstance(node, ast.ImportFrom):
            origins |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and "\nimport " in str(node.value):
            with suppress(SyntaxError):  # else a program for another process
                yield from changed_names(node.value)
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            # setattr("module.name", value) or setattr(owner, "name", value)
            words = [getattr(word, "value", None) for word in node.args[:2]]
            parts = [] if isinstance(words[0], str) else [ast.unparse(node.args[0])]
            parts += [word for word in words if isinstance(word, str)]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            parts = [ast.unparse(node)]
        else:
            continue
        first, *rest = ".".join(parts).split(".")
        if first in origins or len(parts) > 1 or first == "nmfscale":
            yield ".".join([origins.get(first) or first, *rest])


def is_internal(name):
    """Whether a dotted name begins with `_` at its end, or is of the package and not public."""
    first, *rest = name.split(".")
    ours = first == "nmfscale" and (len(rest) < 2 or rest[0] not in nmfscale.__all__)
    return ours or re.match("_[^_]", name.rpartition(".")[2]) is not None


def test_one_file_of_the_tests_changes_internals():
    tests = Path(__file__).resolve().parents[1]
    found = [
        f"{path.relative_to(tests)} changes {name}"
        for path in sorted(tests.rglob("*.py"))
        if path.name not in ("internals.py", Path(__file__).name)
        for name in changed_names(path.read_text(encoding="utf-8"))
        if is_internal(name)
    ]
    assert found == [], "give tests/internals.py a function for it"


@pytest.mark.parametrize(
    ("text", "internal"),
    [
        ("from nmfscale.counts import blocks as b\nmonkeypatch.setattr(b, 'SIZE', 3)", True),
        ("import nmfscale.counts.blocks\nnmfscale.counts.blocks.SIZE = 3", True),
        ("from nmfscale.counts import blocks\nbefore, blocks.SIZE = blocks.SIZE, 3", True),
        ("from nmfscale.engine.worker import Cache\npatch.setattr(Cache, 'put', f)", True),
        ("monkeypatch.setattr('nmfscale.counts.blocks.SIZE', 3)", True),
        ("run('''\nimport nmfscale.counts.blocks as b\nb.SIZE = 3''')", True),
        ("import os\nmonkeypatch.setattr(os, '_exit', f)", True),
        ("import os\nmonkeypatch.setattr(os, 'fsync', f)", False),
        ("import nmfscale\nmonkeypatch.setattr(nmfscale.TopicModel, 'fit', f)", False),
    ],
)
def test_a_change_of_internals_is_found(text, internal):
    (name,) = changed_names(text)
    assert is_internal(name) == internal


def test_heavy_libraries_are_imported_late():
    """What scikit-learn imports by itself (pandas, where it is installed) is not ours to judge."""
    code = (
        "import sys, scipy.sparse, sklearn.base; before = set(sys.modules); import nmfscale; "
        f"print(*sorted({LATE} & (set(sys.modules) - before)))"
    )
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.strip() == "", "`import nmfscale` also imports these"


def test_workers_start_without_scikit_learn():
    """Nor with what scikit-learn imports: they start in a third of the time."""
    steps = ("poisson.alternating", "poisson.newton", "poisson.joint_em", "variational.lda")
    modules = ["engine.worker", *(f"methods.{name}" for name in steps)]
    code = f"import sys, {', '.join('nmfscale.' + name for name in modules)}; "
    code += "print(*sorted({'sklearn', 'pandas', 'scipy.stats'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.strip() == "", "modules of workers also import these"


def test_sources_that_are_not_compiled_say_so(tmp_path):
    compiled = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    package = Path(nmfscale.__file__).parent
    shutil.copytree(package, tmp_path / "nmfscale", ignore=compiled)
    command = [sys.executable, "-c", "import nmfscale; nmfscale.PoissonNMF"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 1
    assert f"the kernels in {tmp_path / 'nmfscale' / 'kernels'} are not compiled" in found.stderr


def test_names_that_the_benchmarks_use_exist():
    """The benchmarks themselves are run at night."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    if not folder.exists():
        pytest.skip("an sdist has no benchmarks")
    missing = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nmfscale"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute) and re.fullmatch(
                r"nmfscale(\.\w+)+", ast.unparse(node)
            ):
                names = [ast.unparse(node)]
            else:
                continue
            missing += [f"{path.name}: {name}" for name in names if not exists(name)]
    assert missing == []


def exists(name):
    """Whether a dotted name is one of the package, or an attribute of something in it."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True

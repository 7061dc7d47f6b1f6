"""The stubs that document the row kernels are installed, and agree with the compiled modules."""

import ast
import re
from pathlib import Path

import pytest

from nmfscale import kernels
from nmfscale.kernels import operands, rows

INSTALLED = Path(kernels.__file__).parent
SOURCES = Path(__file__).parents[2] / "nmfscale" / "kernels"


def stub(name):
    """Return the statements of an installed stub."""
    return ast.parse((INSTALLED / f"{name}.pyi").read_text()).body


def declared(name):
    """Return the public names that a stub declares, without what it imports."""
    found = set()
    for node in stub(name):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            found.add(node.target.id)
    return found


def parameters_of(function):
    """Return the names of the parameters in a stub."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name != "self"]


def in_source(text, pattern):
    """Return the names of the parameters of the first function that a pattern finds."""
    parameters = re.search(rf"{pattern}\((.*?)\):", text, re.DOTALL)[1]
    parameters = re.sub(r"\[.*?\]", "", parameters)  # of types such as double[:, ::1]
    names = [part.partition("=")[0].split()[-1] for part in parameters.split(",")]
    return [name for name in names if name not in ("self", "*")]


@pytest.mark.parametrize(("name", "module"), [("operands", operands), ("rows", rows)])
def test_a_stub_declares_the_names_that_the_package_imports(name, module):
    taken = re.search(rf"from \.{name} import \((.*?)\)", Path(kernels.__file__).read_text(), re.S)
    assert declared(name) == set(re.findall(r"\w+", taken[1]))
    assert all(hasattr(module, each) for each in declared(name))


@pytest.mark.parametrize("name", ["SlicedCounts", "RowProblem", "Extrapolation"])
def test_constructors_have_the_parameters_of_their_stub(name):
    (described,) = (node for node in stub("operands") if getattr(node, "name", None) == name)
    (constructor,) = (node for node in described.body if isinstance(node, ast.FunctionDef))
    text = (SOURCES / "operands.pyx").read_text()
    found = in_source(text[text.index(f"cdef class {name}") :], "def __cinit__")
    assert parameters_of(constructor) == found


def test_kernels_have_the_parameters_of_their_stub():
    text, functions = (SOURCES / "rows.pyx").read_text(), {}
    for node in stub("rows"):
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = parameters_of(node)
    operands_text = (SOURCES / "operands.pyx").read_text()
    buffers = in_source(operands_text[operands_text.index("class RowBuffers") :], "def __cinit__")
    for name, described in functions.items():
        found = in_source(text, rf"\ndef {name}")
        if "**rows" in found:  # a kernel may ignore row arrays; it documents those that it uses
            found.remove("**rows")
            own = [each for each in described if each not in buffers or each in found]
            assert set(own) == set(found), name
            assert set(described) - set(own) <= set(buffers), name
        else:
            assert set(described) == set(found), name
    labels = {"up", "down", "quadratic"}
    assert set(functions["update_rows"]) >= set(buffers) - labels - {"n_slices"}


@pytest.mark.parametrize("name", [path.stem for path in SOURCES.glob("*.pyi")])
def test_stubs_describe_all_that_they_declare(name):
    body = stub(name)
    assert isinstance(body[0], ast.Expr), "the module has no docstring"
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert ast.get_docstring(node), node.name
    text = (SOURCES / f"{name}.pyx").read_text()
    for node in body:
        if isinstance(node, ast.FunctionDef) and name in ("dense", "decompositions"):
            assert parameters_of(node) == in_source(text, rf"\ndef {node.name}"), node.name

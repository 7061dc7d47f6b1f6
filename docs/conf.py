"""Settings of Sphinx for the pages in this folder: python -m sphinx -W -b html docs build/site."""

import inspect
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from numpydoc.xref import DEFAULT_LINKS

import nmfscale
from nmfscale.models.hooks import HOOKS

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import in_full  # noqa: E402  (a file of this folder)

project = "nmfscale"
author = copyright = "The nmfscale developers"
version = release = version_of("nmfscale")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# Links to headings of other pages.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"

autosummary_generate = True
templates_path = ["_templates"]
autodoc_typehints = "none"
# Methods of scikit-learn, whose docstrings link to its own pages, of tuples and of exceptions.
_INHERITED = ["count", "index", "add_note", "with_traceback"]
_INHERITED += ["get_metadata_routing", "get_params", "set_params", "set_output"]
_INHERITED += [
    f"set_{name}_request"
    for name in (
        "fit",
        "partial_fit",
        "transform",
        "inverse_transform",
        "score",
        "perplexity",
        "predict",
        "predict_proba",
    )
]
# Members for those who write a model: docs/engine.md has them.
_INHERITED += sorted(HOOKS)
autosummary_context = {"inherited": _INHERITED}
autodoc_default_options = {
    "members": True,
    "inherited-members": True,
    "exclude-members": ", ".join(_INHERITED),
}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
# Types of arguments and results are links if they are classes of this package; those of others, to
# which numpydoc has links, are text.
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = {name: name for name in DEFAULT_LINKS} | {
    name: f"nmfscale.{room}.{name}"
    for room in ("results", "errors")
    for name in getattr(nmfscale, room).__all__
}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"nmfscale {version}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

# Links to files outside of this folder, and in such files: how they are written, and in the site.
LINKS = {
    "](../../benchmarks/README.md": "](../benchmarks.md",
    "](../benchmarks/README.md": "](benchmarks.md",
    "](benchmarks/README.md": "](benchmarks.md",
    "](../CONTRIBUTING.md": "](contributing.md",
    "](../RELIABILITY.md": "](reliability.md",
    "](RELIABILITY.md": "](reliability.md",
    "](CHANGELOG.md": "](changelog.md",
    "](CONTRIBUTING.md": "](contributing.md",
    "](papers/README.md": "](papers/benchmarks.md",
    "](../README.md": "](../benchmarks.md",
    "](../../docs/": "](../",
    "](../docs/": "](",
    "](docs/": "](",
    "](results/": "](../benchmarks/results/",
}


def link_inside(app, docname, source):
    """Link to pages of the site."""
    for outside, inside in LINKS.items():
        source[0] = source[0].replace(outside, inside)


def link_inside_included(app, path, docname, source):
    """Do the same for a file that a page includes."""
    link_inside(app, docname, source)


def reference_page():
    """Return the page of the reference, from the public names of the package."""
    classes = [name for name in nmfscale.__all__ if isinstance(getattr(nmfscale, name), type)]
    modules = {
        "pl": "Plots",
        "tl": "Functions of AnnData",
        "get": "What is in a fit",
        "likelihood": "Likelihoods",
        "datasets": "Example data",
        "results": "Classes of results",
        "errors": "Errors and warnings",
        "experimental": "Experimental",
    }
    functions = sorted(set(nmfscale.__all__) - set(classes) - set(modules))
    parts = [("Classes", "nmfscale", classes), ("Functions", "nmfscale", functions)]
    parts += [
        (f"{title}: nmfscale.{name}", f"nmfscale.{name}", getattr(nmfscale, name).__all__)
        for name, title in modules.items()
    ]
    text = "Reference\n=========\n"
    for title, module, names in parts:
        text += f"\n{title}\n{'-' * len(title)}\n\n"
        if module == "nmfscale":
            text += f".. currentmodule:: {module}\n\n"
        else:
            docstring = inspect.getdoc(getattr(nmfscale, module.removeprefix("nmfscale.")))
            text += f".. module:: {module}\n\n{docstring}\n\n"
        text += ".. autosummary::\n   :toctree: generated\n   :nosignatures:\n\n"
        text += "".join(f"   {name}\n" for name in names)
    return text


def docstring_in_full(app, what, name, obj, options, lines):
    """Replace what a docstring documents by a reference to another one."""
    if any("As in :" in line for line in lines):
        lines[:] = in_full(name)


# autosummary looks for names in pages that exist when the build starts
Path(__file__).with_name("reference.rst").write_text(reference_page(), encoding="utf-8")


def write_formula(translator, node):
    """Write a formula as MathML, which browsers draw without a script."""
    block = isinstance(node, nodes.math_block)
    tag = "div" if block else "span"
    translator.body.append(translator.starttag(node, tag, "", CLASS="math notranslate"))
    translator.body.append(tex2mathml(node.astext(), as_block=block) + f"</{tag}>")
    raise nodes.SkipNode


def setup(app):
    """Connect the functions above."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("source-read", link_inside)
    app.connect("include-read", link_inside_included)
    app.connect("autodoc-process-docstring", docstring_in_full, priority=400)  # before numpydoc

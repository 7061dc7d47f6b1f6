"""What users see: the README, docstrings and their examples, and the names that must not change."""

import doctest
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from count_files import write_h5ad, write_tenx
from night import at_night

import nmfscale
from nmfscale import testing
from nmfscale.cli import main
from nmfscale.models.hooks import HOOKS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(nmfscale.__path__, "nmfscale.")
    if name != "nmfscale.__main__" and importlib.util.find_spec(name).origin.endswith(".py")
)
COMMANDS = (
    "demo", "fit", "fit-each", "store", "text", "transform", "info", "plot", "test", "bootstrap",
    "correspondence", "select-k", "stability", "topic-quality", "batch-effects", "differential",
    "pseudobulk", "conditions", "export", "report", "restore", "completion", "cluster",
    "cluster-topics", "enrichment", "hierarchy", "features-by-group", "score-modalities",
)  # fmt: skip
# Pages whose names are checked, and names of other packages on them.
PAGES_OF_NAMES = ("faq", "which_model")
FOREIGN = {"score", "fit", "CountVectorizer"}


def failures(test):
    """Run a doctest and return what it reports."""
    runner = doctest.DocTestRunner(verbose=False)  # also where pytest has -v
    report = []
    runner.run(test, out=report.append)
    return "".join(report)


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


# --- README -----------------------------------------------------------------------------------


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def page_of(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def example_of(name):
    """The code of a page as one doctest."""
    source = "\n".join(blocks("python", page_of(name)))
    return doctest.DocTestParser().get_doctest(source, {}, name, f"{name}.md", 0)


def write_cells(path, counts, truth):
    """Cells as AnnData files have them: logarithms, and counts in a layer."""
    anndata = pytest.importorskip("anndata")
    types = [f"type {k}" for k in truth.L.argmax(axis=1)]
    obs = {"obs_names": [f"cell {i}" for i in range(len(types))], "cell_type": types}
    adata = anndata.AnnData(counts.log1p(), obs=obs, layers={"counts": counts})
    adata.var_names = [f"gene {j}" for j in range(counts.shape[1])]
    adata.write_h5ad(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X has its features in another order")
def test_python_of_the_readme_and_the_first_steps(tmp_path, monkeypatch):
    """Copy structure.png from here to docs/ when the picture has changed."""
    monkeypatch.chdir(tmp_path)
    write_cells(
        tmp_path / "cells.h5ad", *nmfscale.datasets.simulate_topic_counts(60, 40, 4, random_state=0)
    )
    texts = [each.__doc__ for each in vars(np).values() if callable(each) and each.__doc__]
    pytest.importorskip("pandas").DataFrame({"review": texts}).to_csv(tmp_path / "reviews.csv")
    source = "\n".join(blocks("python"))
    test = doctest.DocTestParser().get_doctest(source, {}, "README", "README.md", 0)
    assert len(test.examples) > 8
    assert failures(test) == ""
    assert 0 < (tmp_path / "structure.png").stat().st_size < 200_000
    assert failures(example_of("first_steps")) == ""
    commands = re.findall(r"^nmfscale ((?:fit|report) .*)$", README, re.MULTILINE)
    assert [main(shlex.split(words)) for words in commands] == [0, 0]


def test_readme_is_a_landing_page():
    assert len(README.splitlines()) <= 120


@pytest.mark.nightly
def test_page_on_model_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert failures(example_of("model_files")) == ""
    with h5py.File(tmp_path / "docstrings.h5") as file:
        rows = re.findall(r"^\| (.*?) \| (.*) \|$", page_of("model_files"), re.MULTILINE)
        for where, what in rows:
            stored = file.attrs if "attributes" in where else file
            cells = what if where in ("root attributes", "other datasets") else where
            for name in re.findall("`(.*?)`", cells):
                assert name in stored, name


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "n_pictures"),
    [
        ("grouped_topics", 2), ("number_of_topics", 1), ("differential_features", 1),
        ("topic_quality", 3), ("local_optima", 1), ("anndata", 1), ("text", 4),
        ("semi_supervised", 1), ("batches", 2), ("your_design", 6),
        ("programs", 2), ("seeds_and_programs", 1),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:topics of .* replicates were reordered")
@pytest.mark.filterwarnings("ignore:.* fewer than 20 (units|samples)")
@pytest.mark.filterwarnings("ignore:one unit has most of topics")
@pytest.mark.filterwarnings("ignore:few units have some topics")
@pytest.mark.filterwarnings("ignore:most of the variance of topics .* is between units")
@pytest.mark.filterwarnings("ignore:units= is not given, so that each of 5,15")
@pytest.mark.filterwarnings("ignore:samples of group 'numpy' have")
@pytest.mark.filterwarnings("ignore:.* samples have fewer than total=86 counts")
@pytest.mark.filterwarnings("ignore:the proportion of topic .* varies more in group")
@pytest.mark.filterwarnings("ignore:few samples")
def test_python_of_the_pages_with_pictures(name, n_pictures, tmp_path, monkeypatch):
    """Copy the pictures from here to docs/ when they have changed."""
    if name == "anndata":
        pytest.importorskip("anndata")
    monkeypatch.chdir(tmp_path)
    assert failures(example_of(name)) == ""
    pictures = re.findall(r"^!\[.*\]\((.*)\)$", page_of(name), re.MULTILINE)
    for picture in pictures:
        assert 0 < (tmp_path / picture).stat().st_size < 100_000
        assert (ROOT / "docs" / picture).exists()
    assert len(pictures) == n_pictures


@pytest.mark.nightly
def test_measured_pictures_are_drawn_from_stored_results(tmp_path):
    if not (ROOT / "benchmarks" / "results").exists():
        pytest.skip("an sdist has no results of benchmarks")
    script = [sys.executable, ROOT / "docs" / "pictures.py", tmp_path]
    subprocess.run(script, check=True, timeout=100)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == set(
        re.findall(r"^!\[.*\]\((.*\.png)\)$", page_of("how_it_works"), re.MULTILINE)
    )


@pytest.mark.filterwarnings("ignore:the proportion of topic .* varies more in group")
@pytest.mark.filterwarnings("ignore:one unit has most of topics")
@pytest.mark.filterwarnings("ignore:few units have some topics")
@pytest.mark.filterwarnings("ignore:most of the variance of topics .* is between units")
@pytest.mark.filterwarnings("ignore::FutureWarning:mudata")
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("engine", 24), ("languages", 30), ("files", 20), ("modalities", 25),
        ("papers/carbonetto_2021", 12), ("papers/geiger_park_2024", 10), ("papers/haddock_2020", 5),
        *at_night(
            ("report", 5), ("where_counts_live", 5), ("papers/noisy_topics_note", 5),
            ("papers/phelan_thesis", 8), ("models/ssnmf", 6), ("groups", 8),
        ),
        pytest.param("cluster", 7, marks=pytest.mark.slow),
        ("models/topic_model", 7), ("models/poisson_nmf", 5), ("models/lda", 6),
        ("models/gamma_poisson", 5), ("models/noisy_topic_model", 4), ("models/anchor_nmf", 6),
        ("models/frobenius_nmf", 5),
    ],
)  # fmt: skip
def test_python_of_the_pages_that_draw_nothing(name, least, tmp_path, monkeypatch):
    if name == "modalities":
        pytest.importorskip("mudata")
    monkeypatch.chdir(tmp_path)
    test = example_of(name)
    assert len(test.examples) >= least and failures(test) == ""
    places = r"`((?:engine|methods|kernels|counts|tests)/[\w/]+\.\w+)`"
    for path in re.findall(places, page_of(name)):
        assert (ROOT / path).exists() or (ROOT / "nmfscale" / path).exists(), path


def test_names_on_the_pages_without_code():
    text = "\n".join(page_of(name) for name in PAGES_OF_NAMES)
    owners = {name: getattr(nmfscale, name) for name in nmfscale.__all__}
    owners = {name: thing for name, thing in owners.items() if inspect.ismodule(thing)}
    owners |= {"": nmfscale, "model": nmfscale.TopicModel}
    calls = re.findall(rf"`(?:({'|'.join(owners)})\.)?(\w+)\(", text)
    names = {*calls, *re.findall(r"`(pl)\.(\w+)", text)} - {("", name) for name in FOREIGN}
    assert len(names) > 14
    assert [name for name in names if not hasattr(owners[name[0]], name[1])] == []


def test_members_for_those_who_write_a_model_are_described():
    text = page_of("engine")
    named = set(re.findall(r"`(?:self\.)?(\w+)(?:\([^`]*\))?`", text))
    assert sorted(HOOKS - named) == []
    assert all(hasattr(nmfscale.TopicModel, name) for name in HOOKS)


def test_options_on_the_pages_without_code(tmp_path, monkeypatch, capsys):
    """The files are missing (exit 1), but the commands and their options exist (not exit 2)."""
    monkeypatch.chdir(tmp_path)
    text = "\n".join(page_of(name) for name in PAGES_OF_NAMES)
    commands = re.findall(r"^nmfscale (.*)$", text, re.MULTILINE)
    assert len(commands) > 5
    assert [command for command in commands if main(shlex.split(command)) != 1] == []


@pytest.mark.nightly
def test_commands_of_the_page_on_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    counts, _ = nmfscale.datasets.simulate_topic_counts(60, 40, 10, random_state=0)
    for name in ("counts.npz", "new.npz"):
        sp.save_npz(name, counts)
    write_h5ad("cells.h5ad", counts)
    both = nmfscale.join_modalities({"rna": counts, "adt": counts[:, ::2]})
    nmfscale.write_store(both, "genes_and_proteins.nmf")
    Path("words.txt").write_text("".join(f"word {j}\n" for j in range(40)))
    Path("reviews.csv").write_text("review,author\n" + "a good beer,ann\na bad beer,bob\n" * 9)
    Path("words.gmt").write_text("even\t\t" + "\t".join(f"word {j}" for j in range(0, 40, 2)))
    Path("groups.txt").write_text("odd\neven\n" * 30)
    lines = [f"cell {i},type {i % 3},patient {i % 12}\n" for i in range(60)]
    Path("cells.csv").write_text("".join(["cell,cell_type,patient\n", *lines]))
    found = blocks("console", page_of("shell"))
    commands = [line for block in found for line in block.splitlines()]
    for command in commands:
        prompt, program, *words = shlex.split(command)
        assert (prompt, program) == ("$", "nmfscale")
        assert main(words) == 0, command
        if "-o" in words:
            assert Path(words[words.index("-o") + 1]).stat().st_size > 0
    assert {shlex.split(command)[2] for command in commands} == set(COMMANDS) - {"demo", "cluster"}


def test_commands_of_the_page_on_your_own_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    counts, truth = nmfscale.datasets.simulate_topic_counts(60, 40, 10, random_state=0)
    write_h5ad("cells.h5ad", counts)
    write_tenx("filtered_feature_bc_matrix.h5", counts[:, ::6], 2)
    sp.save_npz("counts.npz", counts)
    Path("words.txt").write_text("".join(f"word {j}\n" for j in range(40)))
    Path("labels.txt").write_text("odd\neven\n" * 30)
    for number, row in enumerate(counts.toarray()):
        path = Path("texts", f"group {number % 3}", f"{number}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(f"word{j} " * count for j, count in enumerate(row)))
    found = blocks("console", page_of("your_data"))
    commands = [line.removeprefix("$ ") for block in found for line in block.splitlines()]
    assert len(commands) == 10
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "nmfscale" and main(words) == 0, command
    out, err = capsys.readouterr()
    lines = page_of("your_data").split("|---|---|")[1].split("## Next")[0]
    for words in re.findall(r"^\| (\w[\w ]*)", lines, re.MULTILINE):
        assert words.strip() in out + err or words.strip() == "seed", words


def test_links_of_the_readme():
    targets = re.findall(r"\]\(([^)#]+)", README)
    missing = [to for to in targets if "://" not in to and not (ROOT / to).exists()]
    assert missing == []


def test_switches_of_the_page_on_reproducibility():
    """Every environment variable that the sources read, and no other, is explained."""
    sources = [ROOT / "setup.py", *(ROOT / "nmfscale").rglob("*.py")]
    sources += (ROOT / "nmfscale").rglob("*.pyx")
    used = {
        name
        for path in sources
        for name in re.findall('"(NMFSCALE_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert (
        set(re.findall("NMFSCALE_[A-Z_]+", page_of("reproducibility").split("## Switches")[1]))
        == used
    )


def test_formats_of_the_page_on_where_counts_live(tmp_path):
    unknown = tmp_path / "counts.foo"
    unknown.touch()
    with pytest.raises(ValueError, match="no known suffix") as refusal:
        nmfscale.read_counts(unknown)
    for suffix in re.findall(r"\.[a-z][a-z0-9.]*\w", str(refusal.value).split("expected", 1)[1]):
        assert f"`{suffix}`" in page_of("where_counts_live")


def test_map_of_the_package():
    """CONTRIBUTING names every source file, and no other, room by room."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    room, part, named = "", "", []
    for line in text.split("## Where things are\n\n```\n", 1)[1].split("```", 1)[0].splitlines():
        if found := re.match(r"(\w+/) ", line):
            room, part = found[1], ""
        elif not line.startswith(" "):
            room = part = ""
        if found := re.match(r"  (\w+/) ", line):
            part = found[1]
        elif not line.startswith("    "):
            part = ""
        named += [room + part + name for name in re.findall(r"\b\w+\.(?:pyx?|[ch])\b", line)]
    package = ROOT / "nmfscale"
    sources = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.suffix in {".py", ".pyx", ".c", ".h"}
    }
    packages = {path for path in sources if path.endswith("/__init__.py")}
    assert sorted(named) == sorted(sources - packages)


def test_defaults_in_the_shell_are_those_of_the_estimators(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    given = inspect.signature(nmfscale.TopicModel).parameters
    for name, option in (("max_iter", "--max-iter N"), ("tol", "--tol X")):
        described = text.split(f" {option} ", 1)[1]
        assert float(re.search(r"\(default: (.*?)\)", described)[1]) == given[name].default


# --- Docstrings -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nmfscale", *MODULES])
def test_examples(name):
    module = importlib.import_module(name)
    if name.startswith(("nmfscale.tl", "nmfscale.get")):
        pytest.importorskip("anndata")
    assert module.__doc__
    for test in doctest.DocTestFinder().find(module):
        assert failures(test) == ""


def public_functions():
    """Yield (name, object, docstring, signature) of everything public that takes parameters."""
    found = {name: getattr(nmfscale, name) for name in nmfscale.__all__}
    found |= {f"testing.{name}": getattr(testing, name) for name in testing.__all__}
    rooms = {name: found.pop(name) for name in [*found] if inspect.ismodule(found[name])}
    for room in sorted(rooms.keys() - {"errors", "results"}):
        found |= {f"{room}.{name}": getattr(rooms[room], name) for name in rooms[room].__all__}
    for name, thing in found.items():
        yield pytest.param(thing, id=name)
        if inspect.isclass(thing):
            for method, function in inspect.getmembers(thing, inspect.isfunction):
                for_users = not method.startswith("_") and method not in HOOKS
                if for_users and function.__module__.startswith("nmfscale"):
                    yield pytest.param(function, id=f"{name}.{method}")


def documented(docstring, title):
    """Return the names at the margin of a numpydoc section, None if there is no such section."""
    found = re.search(
        rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)", docstring, re.MULTILINE | re.DOTALL
    )
    if found is None:
        return None
    heads = [line.split(" : ")[0] for line in found[1].splitlines() if re.match(r"\S", line)]
    return [name.strip(" *") for head in heads for name in head.split(",")]


@pytest.mark.parametrize("thing", list(public_functions()))
def test_docstring_matches_the_signature(thing):
    docstring = inspect.getdoc(thing)
    assert docstring, "no docstring"
    assert docstring.split("\n\n")[0].endswith("."), "no summary"
    signature = inspect.signature(thing)
    taken = [name for name in signature.parameters if name != "self"]
    written = documented(docstring, "Parameters") or []
    assert sorted(written) == sorted(taken)
    if inspect.isclass(thing):
        assert written == taken, "the parameters are in another order"
    if inspect.isfunction(thing) and signature.return_annotation not in (None, "None"):
        assert documented(docstring, "Returns"), "no Returns section"


@pytest.mark.parametrize("thing", list(public_functions()))
def test_what_is_public_has_an_example(thing):
    if "." not in thing.__qualname__:  # of the methods, those of a class's own example may do
        assert "\nExamples\n---" in inspect.getdoc(thing)


@pytest.mark.parametrize("model", [nmfscale.PoissonNMF, nmfscale.TopicModel])
def test_fitted_attributes_are_documented(model, tmp_path):
    fitted = model(2, max_iter=3, tol=0, random_state=0).fit(np.eye(6, dtype=int) + 1)
    there = {name for name in vars(fitted) if name.endswith("_") and not name.startswith("_")}
    written = set(documented(inspect.getdoc(model), "Attributes"))
    assert there <= written
    of_some = "feature_names_in_ feature_labels_ of_text_ topic_names_ from_table_ "
    of_some += "modalities_ feature_weights_ "
    of_some += "n_batch_iter_ n_samples_seen_ mean_counts_ mean_loadings_"
    assert written - there <= set(of_some.split())
    records = inspect.getdoc(nmfscale.PoissonNMF)
    assert all(f"``{name}``" in records for name in fitted.history_.dtype.names)


def test_properties_are_documented():
    for name in nmfscale.__all__:
        thing = getattr(nmfscale, name)
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if isinstance(value, property) and member[0] != "_" and member not in HOOKS:
                assert value.__doc__, f"{name}.{member}"


# --- Names that other people's code relies on -------------------------------------------------


@pytest.mark.parametrize("model", [nmfscale.PoissonNMF, nmfscale.TopicModel])
def test_names_of_an_estimator(model):
    given = inspect.signature(model).parameters
    assert next(iter(given)) == "n_components"
    names = "solver init max_iter tol inner_iter extrapolate n_threads random_state verbose"
    assert all(given[name].kind is given[name].KEYWORD_ONLY for name in names.split())
    fit = inspect.signature(model.fit).parameters
    assert [*fit][:3] == ["self", "X", "y"] and {"loadings", "components"} <= set(fit)
    for name in "transform fit_transform inverse_transform score perplexity save".split():
        assert callable(getattr(model, name))


@pytest.mark.parametrize("solver", ["auto", "em", "joint-em", "ccd", "scd", "sn", "newton"])
def test_names_of_a_fit(solver):
    counts, truth = nmfscale.datasets.simulate_poisson_nmf(20, 15, 2, random_state=0)
    model = nmfscale.TopicModel(2, solver=solver, max_iter=4, tol=0, inner_iter=1)
    model.fit(counts, loadings=truth.L + 0.1, components=truth.F.T + 0.1)
    assert model.components_.shape == (2, 15)
    assert model.loadings_.shape == (20, 2)
    assert model.size_factors_.shape == (20,)
    assert model.n_iter_ == len(model.history_) == 4
    assert isinstance(model.loglik_, float) and isinstance(model.converged_, bool)
    fields = "iteration seconds loglik loglik_multinomial deviance kkt_loadings kkt_factors"
    assert set(fields.split()) <= set(model.history_.dtype.names)


def test_names_of_counts():
    counts = nmfscale.read_counts(np.eye(3, dtype=int))
    assert (counts.shape, counts.nnz) == ((3, 3), 3)
    assert counts.sample_names is None and counts.feature_names is None


def test_recipe_for_conda_has_the_version_and_the_dependencies_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = (ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
    assert re.search('^  version: "(.*?)"', recipe, re.MULTILINE)[1] == project["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search("^version: (.*)$", citation, re.MULTILINE)[1] == project["version"]
    run = recipe.split("  run:\n", 1)[1].split("\n\n", 1)[0].replace("dask-core", "dask")
    expected = [name.replace(">=", " >=") for name in project["dependencies"]]
    assert re.findall("- (.*)", run) == ["python", *expected]


def test_version(capsys):
    if nmfscale.__version__ == "unknown":
        pytest.skip("nmfscale is imported from its sources, not installed")
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"nmfscale {nmfscale.__version__}\n"
    assert f"\n## {nmfscale.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    scripts = importlib.metadata.entry_points(group="console_scripts", name="nmfscale")
    assert [script.load() for script in scripts] == [main]

"""write_report: the page, assembled from its sections."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from ..annotated.places import symbols_of
from ..counts.argument_types import CountsLike
from ..counts.matched_frames import index_of, matched_by_name
from ..counts.names import shown
from ..inference.design.loadings import SampleTopics
from ..methods.topics.score_names import DEFAULT_SCORE
from ..models.comparison import match_topics
from ..models.from_components import why_no_loadings
from ..models.leading_features import leading_features
from ..models.pipelines import FittedModel, model_and_input, model_of
from ..models.tables import Tabular
from ..models.topics.symbols import symbols_by_name, with_symbols
from ..models.topics.topic_labels import topic_labels, topic_words
from ..models.topics.topics import topic_names_of
from ..pl.canvas import topic_colors
from ..storage.atomic import atomic_write, target_of
from . import charts, facts, sections
from .modalities import modality_sections
from .seed_section import seed_section

# Leading features of each topic in the table, and on the map; leading samples of each topic.
_N_FEATURES_OF_TABLE, _N_WORDS, _N_SAMPLES = 100, 8, 8


def write_report(
    model: FittedModel,
    path: str | os.PathLike[str],
    X: CountsLike | None = None,
    *,
    groups: ArrayLike | Mapping[str, ArrayLike] | None = None,
    other: FittedModel | None = None,
    results: Iterable[Any] = (),
    gene_symbols: ArrayLike | Mapping[str, str] | None = None,
    title: str | None = None,
    about: Mapping[str, str] | None = None,
    n_top: int = 20,
    max_samples: int = 2000,
    overwrite: bool = False,
) -> Path:
    """Write a fit, and what was found from it, to one HTML file.

    The file needs no network and no other file: it can be sent to a colleague and opened in a
    browser. It has the Structure plot with groups to choose, a card for each topic with its
    leading features by several scores and its leading samples, a map of the topics, a searchable
    table of features, the convergence of the fit and how it was made; and a section for each of
    `results`.

    Parameters
    ----------
    model : fitted model
        Any estimator of this package, or a pipeline that ends with one. A model fitted in batches
        has no samples to show.
    path : str or path-like
        The file to write, such as ``"report.html"``.
    X : counts of shape (n_samples, n_features), default=None
        The counts of the fit. If given, the quality of the topics is measured, as by
        :func:`nmfscale.topic_quality`.
    groups : array-like of shape (n_samples,), DataFrame or dict, default=None
        Labels of the samples for the Structure plot. A DataFrame, such as ``adata.obs``, or a dict
        of arrays has several groupings to choose from. pandas objects are matched by name.
    other : fitted model, default=None
        Another fit, whose topics are matched with those of `model`.
    results : iterable, default=()
        Results of :func:`nmfscale.select_k`, :func:`nmfscale.stability`,
        :func:`nmfscale.permutation_test`, :func:`nmfscale.group_effects`,
        :func:`nmfscale.bootstrap_weights`,
        :func:`nmfscale.topic_quality`, :func:`nmfscale.coherence`, :func:`nmfscale.batch_effects`,
        :func:`nmfscale.cluster_topics`, :func:`nmfscale.enrichment`,
        :func:`nmfscale.condition_features`, :func:`nmfscale.features_by_group`,
        :func:`nmfscale.topic_hierarchy`, :func:`nmfscale.score_modalities` and
        :func:`nmfscale.differential_features`. Other
        results are shown as tables. A fit with batches always has a section on them, and a fit with
        seeds one on these.
    gene_symbols : str, array-like of shape (n_features,), Series or dict, default=None
        Names of features to show in place of those of the fit, such as symbols in place of Ensembl
        identifiers: a column of ``X.var``, if `X` is an AnnData object; or the symbols themselves,
        those of a Series or dict by name, such as ``adata.var["symbol"]``. Features without a
        symbol keep their names.
    title : str, default=None
        Title of the page; by default the class of the model and its number of topics.
    about : dict of str to str, default=None
        More facts that the page shows of how the fit was made, such as the source of the counts.
    n_top : int, default=20
        Number of leading features of each topic.
    max_samples : int, default=2000
        Number of samples in the Structure plot; of more, a random subset is drawn, by groups.
    overwrite : bool, default=False
        Whether an existing file is replaced.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ImportError
        If Bokeh is missing: ``pip install 'nmfscale[report]'``.
    NotFittedError
        If the model is not fitted.
    FileExistsError
        If the file exists, and `overwrite` is false.
    ValueError
        If groups or results do not belong to the model.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import nmfscale
    >>> counts = nmfscale.datasets.docstrings()
    >>> model = nmfscale.TopicModel(6, random_state=1).fit(counts)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = nmfscale.write_report(model, Path(folder, "report.html"), groups=counts.groups)
    ...     page = path.read_text()
    >>> "Structure" in page
    True
    """
    charts.need_bokeh()
    if isinstance(gene_symbols, str):
        gene_symbols = symbols_of(X, gene_symbols)
    model, X = model_and_input(model, X)
    check_is_fitted(model, "components_")
    symbols = {} if gene_symbols is None else symbols_by_name(gene_symbols, model)
    target = target_of(path)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists: pass overwrite=True to replace it.")
    samples = facts.samples_of(model)
    groupings = _groupings(groups, samples, model)

    shown_model = with_symbols(model, symbols) if symbols else model

    def shown_with(fit: Any) -> Any:
        return with_symbols(fit, symbols, shown_model) if symbols else fit

    words = topic_words(shown_model)
    names = topic_labels(topic_names_of(model, len(model.components_)), words)
    results = list(results)
    page_sections, differential = _sections_of(map(shown_with, results), words, len(names))
    qualities = [
        result
        for result in results
        if type(result).__name__ == "TopicQuality" and result.modalities is not None
    ]
    if X is not None and "quality" not in [section.kind for section in page_sections]:
        from ..inference.choice.topic_quality import topic_quality

        qualities = [topic_quality(model, X)]
        page_sections.append(sections.quality_section(shown_with(qualities[0]), words))
    page_sections += modality_sections(shown_model, names, qualities)
    if getattr(model, "batches_", None) is not None and samples is not None:
        if "batches" not in [section.kind for section in page_sections]:
            from ..inference.batches.effects import batch_effects

            page_sections.append(sections.batches_section(batch_effects(model), words))
    if (of_seeds := seed_section(model)) is not None:
        page_sections.append(of_seeds)
    if other is not None:
        match = match_topics(model, other)
        match = replace(match, words_a=words, words_b=topic_words(shown_with(model_of(other))))
        page_sections.append(sections.similarity_section(match))
    if (convergence := sections.convergence_section(model)) is not None:
        page_sections.append(convergence)
    context = _topics(shown_model, samples, names, n_top, differential)
    if samples is not None:
        seed = getattr(model, "seed_", None) or 0
        context["data"]["structure"] = drawn = sections.structure_data(
            samples, groupings, names, max_samples, seed
        )
        context["charts"]["structure"] = charts.structure_chart(topic_colors(len(names)))
        context["groupings"] = [order["name"] for order in drawn["orders"]]
        context["n_drawn"], context["n_samples"] = len(drawn["names"]), len(samples)
    context |= {
        "title": title or f"{type(model).__name__}, {len(names)} topics",
        "warnings": facts.warnings_of(model), "facts": facts.fit_facts(model),
        "made": facts.making_facts(about or {}), "sections": sections.numbered(page_sections),
    }  # fmt: skip
    with atomic_write(target) as part:
        Path(part).write_text(_rendered(context), encoding="utf-8", errors="backslashreplace")
    return target


def _groupings(groups: Any, samples: SampleTopics | None, model: Any) -> list[tuple[str, Any]]:
    """Return names of groupings and labels of the samples."""
    if groups is None:
        return []
    if samples is None:
        raise ValueError(f"groups: the model has no samples to group, as {why_no_loadings(model)}.")
    groupings = groups
    if not hasattr(groups, "columns") and not isinstance(groups, Mapping):
        groupings = {str(getattr(groups, "name", None) or "groups"): groups}
    named = any(hasattr(groupings[name], "iloc") for name in groupings)
    names = index_of(samples.sample_names) if named else None
    return [
        (str(name), matched_by_name(groupings[name], names, f"groups[{name!r}]", "the model"))
        for name in groupings
    ]


def _sections_of(
    results: Iterable[Any], words: sections.Words, n_topics: int
) -> tuple[list[sections.Section], Any]:
    """Return a section for each result, and the differential features, which are in the cards."""
    page_sections, differential = [], None
    for result in results:
        kind = type(result).__name__
        if kind == "DifferentialFeatures":
            if len(result.topic_names) != n_topics:
                raise ValueError(
                    f"results: differential features of {len(result.topic_names)} topics do not "
                    f"belong to a model of {n_topics}."
                )
            differential = result
        elif kind in sections.OF_RESULTS:
            page_sections.append(sections.OF_RESULTS[kind](result, words))
        elif isinstance(result, Tabular):
            page_sections.append(sections.table_section(result))
        else:
            raise ValueError(
                f"results has {shown(result)}, a {kind}: results of functions such as "
                "permutation_test are needed."
            )
    return page_sections, differential


def _topics(
    model: Any, samples: SampleTopics | None, names: list[str], n_top: int, differential: Any
) -> dict[str, Any]:
    """Return cards, map and table of the topics."""
    keywords = facts.keywords(model, n_top, differential)
    shares, members = None, list[Any]([[]] * len(names))
    if samples is not None:
        shares, members = facts.shares_and_samples(samples, _N_SAMPLES)
    colors = topic_colors(len(names))
    cards = [
        {
            "name": names[k], "color": colors[k], "samples": members[k],
            "numbered": names[k] if names[k].startswith(f"{k} ") else f"{k} {names[k]}",
            "share": None if shares is None else f"{shares[k]:.1%}",
        }
        for k in range(len(names))
    ]  # fmt: skip
    frequencies, features, leading = leading_features(model, None, _N_FEATURES_OF_TABLE)
    words = [", ".join(word for word, _ in of[:_N_WORDS]) for of in keywords[DEFAULT_SCORE]]
    kept = np.unique(np.concatenate(leading))
    scores = facts.SCORES | ({} if differential is None else {"z": facts.Z_SCORE})
    return {
        "cards": cards, "scores": scores, "default_score": DEFAULT_SCORE,
        "charts": {
            "map": charts.map_chart(facts.topic_map(frequencies), shares, names, colors, words)
        },
        "data": {
            "keywords": keywords, "topics": names, "features": [features[j] for j in kept],
            "frequencies": np.round(1e6 * frequencies[:, kept].T, 1).tolist(),
        },
    }  # fmt: skip


def _rendered(context: dict[str, Any]) -> str:
    """Return the page as text."""
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Environment, PackageLoader, StrictUndefined

    drawn = dict(context["charts"])
    for i, section in enumerate(context["sections"]):
        drawn |= {f"{i}.{j}": chart for j, chart in enumerate(section.charts)}
    script, divs = components(drawn, wrap_script=False)
    environment = Environment(
        loader=PackageLoader("nmfscale.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    # the order of keys is that of groupings and scores
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    bokeh = Resources(mode="inline", components=["bokeh"]).js_raw
    return environment.get_template("page.html").render(
        {"groupings": [], "n_drawn": 0, "n_samples": 0} | context,
        divs=divs, chart_script=script, bokeh=bokeh,
    )  # fmt: skip

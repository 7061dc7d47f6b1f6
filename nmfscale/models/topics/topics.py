"""Topics of a fitted model: reorder, merge and rename them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from ...counts.argument_types import Topic
from ...counts.names import names_of, shown
from ...readers.gene_sets import read_gmt
from .of_modality import ModalityMixin

Array = NDArray[Any]

# Axes of the arrays that all estimators may have: n samples, m features, k topics, t iterations.
AXES = {
    "components_": "km",
    "loadings_": "nk",
    "size_factors_": "n",
    "scales_": "k",
    "feature_names_in_": "m",
    "feature_labels_": "m",
    "unseen_features_": "m",
    "sample_names_": "n",
    "sample_totals_": "n",
    "feature_totals_": "m",
    "feature_weights_": "m",
    "modalities_": "m",
    "row_weights_": "n",
    "fixed_topics_": "k",
    "fixed_features_": "m",
    "fixed_samples_": "n",
    "panel_": "n",
    "measured_": "bm",
    "batch_": "n",
    "batches_": "g",
    "batch_efficiencies_": "gm",
    "topic_names_": "k",
    "history_": "t",
}
# Attributes that describe a fit, and that a model with merged topics does not have.
_OF_THE_FIT = {
    "history_", "converged_", "interrupted_", "stop_reason_", "n_iter_", "loglik_", "elbo_",
    "loss_", "fixed_topics_", "warnings_",
}  # fmt: skip


class TopicsMixin(ModalityMixin):
    """Methods that return a fitted copy of a model with topics reordered, merged or renamed.

    A model implements merging in `merged_arrays`, or says in `why_not_merged` why it cannot.

    Attributes
    ----------
    array_axes : dict of str to str
        Axes of the fitted arrays that only this model has, as in `AXES`.
    parameters_of_topics : tuple of str
        Parameters whose arrays have a number for each topic.
    why_not_merged : str
        Why topics cannot be merged; "" if they can.
    """

    array_axes: ClassVar[dict[str, str]] = {}
    parameters_of_topics: ClassVar[tuple[str, ...]] = ()
    why_not_merged: ClassVar[str] = ""

    components_: Array
    topic_names_: Array

    def reorder_topics(self, order: Sequence[Any]) -> Self:
        """Return a copy of the fitted model with its topics reordered.

        Parameters
        ----------
        order : sequence of int or str
            Numbers or names of all topics, each once: topic ``order[k]`` becomes topic k.

        Returns
        -------
        self : object
            A copy that is the same model. It shares the arrays that have no axis of topics.

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        ValueError
            If `order` lacks a topic or names one twice.

        Examples
        --------
        Arrange the topics of one fit in the order of another:

        >>> import numpy as np
        >>> from nmfscale import TopicModel, match_topics
        >>> from nmfscale.datasets import simulate_topic_counts
        >>> X, *_ = simulate_topic_counts(100, 30, 3, random_state=0)
        >>> one, other = (TopicModel(3, random_state=seed).fit(X) for seed in (0, 1))
        >>> other = other.reorder_topics(match_topics(one, other).order)
        >>> bool(np.allclose(one.components_, other.components_, atol=1e-3))
        True
        """
        check_is_fitted(self)
        order = _checked_list(order, "order")
        taken = [topic_number(self, topic, "order") for topic in order]
        K = len(self.components_)
        if sorted(taken) != list(range(K)):
            raise ValueError(
                f"order is {shown(order)}: each of the {K} topics is needed, once; merge_topics "
                "puts topics together."
            )
        model = self._taken("k", taken)
        for name in self.parameters_of_topics:
            setattr(model, name, _reordered(getattr(self, name), taken, name))
        _keep_seeds(self, model, [[topic] for topic in taken])
        return model

    def merge_topics(
        self, groups: Sequence[Sequence[Topic]] | Mapping[str, Sequence[Topic]]
    ) -> Self:
        r"""Return a copy of the fitted model in which groups of topics are merged.

        The loadings of a group are the sum over its topics; its factors are the mean over its
        topics, weighted by the counts that they explain. So the expected total of every sample and
        of every feature stays the same; the expected counts themselves change, unless the topics of
        a group were equal.

        Parameters
        ----------
        groups : sequence of sequences of int or str, or dict of str to such a sequence
            Topics of each group, by number or name; the keys of a dict are names of the merged
            topics. Topics in no group stay as they are. A merged topic takes the place of the first
            topic of its group.

        Returns
        -------
        self : object
            A copy with fewer topics. It has no ``history_``, log-likelihood or other attributes
            that describe the fit: the merged model is not an optimum, but a fit can start from it.

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        ValueError
            If a topic does not exist or is in two groups; if a prior has different numbers for each
            topic; if topics of this model cannot be merged: a topic of :class:`AnchorNMF`,
            :class:`GammaPoisson` or :class:`NoisyTopicModel` belongs to one anchor or one
            posterior.

        Notes
        -----
        For a Poisson NMF with :math:`S_k = \sum_i l_{ik}` and :math:`c_k = \sum_j f_{jk}`, group g
        has :math:`f_{jg} = \sum_k S_k f_{jk} / \sum_k S_k` and
        :math:`l_{ig} = \sum_k l_{ik} c_k / c_g`, where :math:`c_g = \sum_j f_{jg}`. In a topic
        model proportions add, and frequencies are weighted by the expected counts of the topics.
        In :class:`LDA` the parameters of Dirichlet posteriors and of the prior of proportions add;
        the sum for a merged topic contains the prior of topics once.

        Examples
        --------
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = TopicModel(n_components=2, random_state=1).fit(X)
        >>> merged = model.merge_topics({"everything": [0, 1]})
        >>> merged.topic_names_.tolist(), merged.components_.round(3).tolist()
        (['everything'], [[0.381, 0.143, 0.19, 0.286]])
        >>> merged.size_factors_.round(6).tolist() == model.size_factors_.round(6).tolist()
        True
        """
        check_is_fitted(self)
        if self.why_not_merged:
            raise ValueError(
                f"topics of {type(self).__name__} cannot be merged: {self.why_not_merged}."
            )
        parts, names = self._parts(groups)
        for name in self.parameters_of_topics:
            if np.shape(getattr(self, name))[-1:] not in ((), (1,)):
                raise ValueError(
                    f"{name} has numbers of its own for each topic, which a merged topic does not "
                    f"have: set_params({name}=None) first, or to one number."
                )
        model = copy.copy(self)
        for name in _OF_THE_FIT & vars(model).keys():
            delattr(model, name)
        for name, value in self.merged_arrays(parts).items():
            setattr(model, name, value)
        if names is not None:
            model.topic_names_ = names
        _keep_seeds(self, model, parts)
        model.n_components = len(parts)  # type: ignore[attr-defined]
        return model

    def rename_topics(self, names: Sequence[str] | Mapping[Topic, str]) -> Self:
        """Return a copy of the fitted model whose topics have names.

        Model files store the names; tables and plots of the command line and
        ``set_output(transform="pandas")`` show them. A new fit has no names.

        Parameters
        ----------
        names : sequence of str, or dict of int or str to str
            A name for each topic; or a dict of new names by number or current name, in which case
            other topics keep their names, or get names such as "topic 0". Names must be distinct.

        Returns
        -------
        self : object
            A copy that shares all other arrays, with ``topic_names_`` of shape (n_components,).

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        ValueError
            If the number of names is not that of topics, or two topics have the same name.

        Examples
        --------
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> model = TopicModel(n_components=2, random_state=1).fit(X).rename_topics({1: "tools"})
        >>> model.topic_names_.tolist()
        ['topic 0', 'tools']
        """
        check_is_fitted(self)
        model = copy.copy(self)
        model.topic_names_ = new_topic_names(self, names)
        return model

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Array:
        """Return the names of the columns of loadings: the names of topics, if they have any.

        Parameters
        ----------
        input_features : object
            Ignored, as by scikit-learn's estimators of this kind.

        Returns
        -------
        ndarray of shape (n_components,), object
            Names, by default the name of the class and a number.
        """
        check_is_fitted(self)
        names = getattr(self, "topic_names_", None)
        if names is None:
            default: Array = super().get_feature_names_out(input_features)  # type: ignore[misc]
            return default
        return np.array(names, dtype=object)

    def merged_arrays(self, parts: list[list[int]]) -> dict[str, Array]:
        """Return the attributes of the model after its topics are merged.

        Parameters
        ----------
        parts : list of lists of int
            Topics of each merged topic; every topic is in one list.

        Returns
        -------
        dict of str to ndarray
            Attributes by name.
        """
        raise NotImplementedError

    def _taken(self, axis: str, numbers: Any) -> Self:
        """Return a copy with a selection along one axis of the arrays: see `AXES`."""
        model = copy.copy(self)
        for name, axes in self._all_axes().items():
            value = getattr(self, name, None)
            if axis in axes and value is not None and np.ndim(value):
                setattr(model, name, np.ascontiguousarray(value.take(numbers, axes.index(axis))))
        return model

    def _all_axes(self) -> dict[str, str]:
        return AXES | self.array_axes

    def _parts(self, groups: Any) -> tuple[list[list[int]], Array | None]:
        """Return the groups of topics that are merged, and the new names, if there are any."""
        named = isinstance(groups, Mapping)
        lists = _checked_list(groups.values() if named else groups, "groups")
        if any(isinstance(part, str) or not isinstance(part, Iterable) for part in lists):
            raise ValueError(f"groups is {shown(groups)}: sequences of topics are needed.")
        merged = [[topic_number(self, topic, "groups") for topic in topics] for topics in lists]
        together = [topic for part in merged for topic in part]
        if not all(merged) or len(set(together)) < len(together):
            raise ValueError(
                f"groups is {shown(groups)}: a group needs a topic at least, and a topic one group "
                "at most."
            )
        K = len(self.components_)
        old = topic_names_of(self, K)
        parts = [*merged, *([topic] for topic in range(K) if topic not in together)]
        names = [" + ".join(old[topic] for topic in part) for part in parts]
        if named:
            names[: len(merged)] = list(groups)
        place = sorted(range(len(parts)), key=lambda at: min(parts[at]))
        if not named and not hasattr(self, "topic_names_"):
            return [parts[at] for at in place], None
        checked = _checked_names([names[at] for at in place], len(parts))
        return [parts[at] for at in place], checked


def _keep_seeds(model: Any, changed: Any, parts: list[list[int]]) -> None:
    """Set the seeds of a copy of a model, each of whose topics was the topics in one of `parts`."""
    seeds = getattr(model, "seeds", None)
    if seeds is None:
        return
    seeds = seeds if isinstance(seeds, Mapping) else read_gmt(seeds)
    words = [list(of_topic) for of_topic in seeds.values()]
    of_new = [[word for k in part if k < len(words) for word in words[k]] for part in parts]
    n_named = max((k for k, of_topic in enumerate(of_new) if of_topic), default=-1) + 1
    names = topic_names_of(changed, len(changed.components_))
    changed.seeds = dict(zip(names[:n_named], of_new[:n_named], strict=True))


def _checked_list(values: Any, argument: str) -> list[Any]:
    """Return the argument as a list, or raise an error."""
    if not isinstance(values, Iterable):
        raise ValueError(f"{argument} is {shown(values)}: a list of topics is needed.")
    return list(values)


def topic_names_of(fit: Any, n_topics: int) -> list[str]:
    """Return the names of the topics of a fit, by default "topic 0", "topic 1", ..."""
    names = getattr(fit, "topic_names_", None)
    if names is None:
        return [f"topic {topic}" for topic in range(n_topics)]
    return [str(name) for name in names]


def new_topic_names(fit: Any, names: Any) -> Array:
    """Return the names of all topics of a fit, given as for `rename_topics`."""
    of_topics = None if isinstance(names, Mapping) else names_of(names)
    if of_topics is not None:  # a Series
        names = dict(zip(of_topics, names, strict=True))
    if isinstance(names, Mapping):
        new = topic_names_of(fit, len(fit.components_))
        for topic, name in names.items():
            new[topic_number(fit, topic, "names")] = name
    else:
        new = [names] if isinstance(names, str) else _checked_list(names, "names")
    return _checked_names(new, len(fit.components_))


def topic_number(model: Any, topic: Any, argument: str) -> int:
    """Return the number of a topic of a fitted model, given by number or name."""
    K, names = len(model.components_), getattr(model, "topic_names_", None)
    if isinstance(topic, str):
        if names is None or topic not in names:
            choices = (
                f"topics have numbers from 0 to {K - 1}, and no names"
                if names is None
                else f"names: {', '.join(map(repr, names))}"
            )
            raise ValueError(f"{argument}: no topic is named {shown(topic)}; {choices}.")
        return int(np.flatnonzero(names == topic)[0])
    is_number = isinstance(topic, Integral) and not isinstance(topic, bool)
    if not is_number or not 0 <= int(topic) < K:
        raise ValueError(f"{argument}: {shown(topic)} is not a topic: topics are 0 to {K - 1}.")
    return int(topic)


def _checked_names(names: list[Any], n_topics: int) -> Array:
    if len(names) != n_topics:
        raise ValueError(f"names has {len(names)} entries for {n_topics} topics.")
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"names: {shown(name)} is not a name; text is needed.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"names: several topics would be {shown(repeated[0])}.")
    return np.array(names, dtype=object)


def _reordered(value: Any, order: list[int], name: str) -> Any:
    """Return a parameter with reordered topics: arrays have topics on their last axis."""
    if name.startswith("prior_") and isinstance(value, tuple):  # (alpha, rate)
        return tuple(_reordered(part, order, "") for part in value)
    if np.shape(value)[-1:] in ((), (1,)):
        return value
    if hasattr(value, "iloc") and value.ndim == 2:  # its rows have names
        return value.iloc[:, order]
    return np.asarray(value)[..., order]

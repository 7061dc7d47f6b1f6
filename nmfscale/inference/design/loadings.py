"""Topic proportions or amounts of samples, as tests and estimates of groups use them.

All questions use the same function, `topics_of_samples`, so that tests, means, regressions and
weights of one model have the same rows. `scale="proportions"` is the default everywhere. The
null hypothesis is that groups have the same mixture of topics; sequencing depth or document length
is no part of it. Proportions have the same mean at any depth; amounts do not, and a deep sample
outweighs shallow ones. `scale="amounts"` asks a question about the whole corpus: how much of
each topic each group has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import check_option
from ...counts.foreign import refuse_annotated
from ...counts.names import name_array, names_of, shown
from ...counts.warn import warn_caller
from ...methods.factors import proportions
from ...models.arguments.measured_entries import efficiencies_of_fit
from ...models.pipelines import model_of
from ...models.topics.topic_labels import topic_words

Array = NDArray[Any]
Scale: TypeAlias = Literal["proportions", "amounts"]
TopicSums: TypeAlias = Mapping[Any, Sequence[Any]]


@dataclass(frozen=True)
class SampleTopics:
    """Topics of samples (n, T) in float64; rows of empty samples are 0.

    `scale` is "proportions", rows that sum to 1, or "amounts". `totals` (n,) are the total counts
    of samples, None if unknown. `sample_names` (n,) is None if samples have no names. `model` is
    the fitted model, None for an array. `whole_totals` (n,) are the totals that samples would have
    if everything had been measured in all, with efficiencies of 1. `members` are the numbers of the
    model's topics that each of these is the sum of, None if each is one topic of the model.
    """

    rows: Array
    topic_names: tuple[Any, ...]
    scale: str
    totals: Array | None = None
    sample_names: Array | None = None
    model: Any = None
    whole_totals: Array | None = None
    members: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.rows)

    @property
    def words(self) -> tuple[str, ...] | None:
        """Leading features of each topic as text, empty for sums; None if they are unknown."""
        words = topic_words(self.model)
        if words is None or self.members is None:
            return words
        return tuple("" if len(topics) > 1 else words[topics[0]] for topics in self.members)

    @property
    def empty(self) -> Array:
        """Mask (n,) of samples without counts."""
        empty: Array = np.logical_not(self.rows.any(axis=1))
        return empty

    def of(self, kept: Array) -> SampleTopics:
        """Return some of the samples."""
        totals, names, whole = (
            None if array is None else array[kept]
            for array in (self.totals, self.sample_names, self.whole_totals)
        )
        return replace(
            self, rows=self.rows[kept], totals=totals, sample_names=names, whole_totals=whole
        )

    def warn_of_empty(self, with_them: str = "") -> None:
        """Warn of empty samples that are left out; `with_them` names what is left out with them."""
        n_empty = int(self.empty.sum())
        if not n_empty:
            return
        why = "their loadings are all 0"
        if self.totals is not None and not self.totals[self.empty].any():
            why = "they have no counts"
        if n_empty == len(self):
            raise ValueError(f"none of {n_empty:,} samples has topics: {why}.")
        warn_caller(f"{n_empty:,} of {len(self):,} samples are left out: {why}{with_them}.")


def topics_of_samples(
    model: Any, scale: str = "proportions", topic_names: Any = None, *,
    topic_sums: TopicSums | None = None, warn: bool = True,
) -> SampleTopics:  # fmt: skip
    """Return the topics of samples from a model or an array, as proportions or amounts.

    For a fitted model, amounts are the expected counts of each topic in each sample, so that the
    scale of components does not matter; proportions are amounts divided by their sum. If the model
    has posteriors (LDA, GammaPoisson), the prior is subtracted: it shrinks expected proportions
    most in samples with few counts. For an array, amounts are its rows. `topic_sums` adds up
    topics, see `summed_topics`. `warn`: warn of samples that are left out.
    """
    check_option("scale", scale, Scale)
    model = model_of(model)
    if isinstance(model, SampleTopics):
        topics = model
        if topic_names is not None:
            names = checked_names(topic_names, topics.rows.shape[1], "topic_names")
            topics = replace(topics, topic_names=names)
    else:
        values, names = checked_loadings(model, topic_names)
        totals = whole = None
        if hasattr(model, "components_"):
            totals = getattr(model, "sample_totals_", None)
            whole = _whole_totals(model, values, totals)
            values = _amounts(model, values, whole, scale)
        values = scaled_rows(values)
        topics = SampleTopics(values, names, "amounts", totals, names_of(model), model, whole)
    if scale == "proportions" and topics.scale == "amounts":
        topics = replace(topics, rows=proportions(topics.rows), scale=scale)
    if topic_sums is not None:
        topics = summed_topics(topics, topic_sums)
    if warn:
        topics.warn_of_empty()
    return topics


def _whole_totals(model: Any, values: Array, totals: Array | None) -> Array | None:
    """Return the totals that the samples of a fit would have if everything had been measured.

    So they have without the efficiencies of batches.
    """
    F, among = np.asarray(model.components_.T, np.float64), efficiencies_of_fit(model)
    if totals is not None and among is not None:
        return among.whole_totals(totals, values * F.sum(axis=0), F)
    if totals is not None and getattr(model, "has_missing_entries_", False):
        expected: Array = (values * F.sum(axis=0)).sum(axis=1)
        return expected * model.size_factors_ if model.loadings_are_proportions else expected
    return totals


def _amounts(model: Any, values: Array, totals: Array | None, scale: str) -> Array:
    """Return the expected counts of each topic in each sample (n, T), 0 if it is empty."""
    for posterior, prior in _POSTERIORS:
        if getattr(model, posterior, None) is not None:
            counts = np.asarray(getattr(model, posterior), np.float64) - getattr(model, prior)
            values = np.maximum(counts, 0.0)
            break
    else:
        sums = np.asarray(model.components_, np.float64).sum(axis=1)
        values = values * sums
        if scale == "amounts" and getattr(model, "loadings_are_proportions", False):
            if totals is None:
                raise ValueError(
                    f"scale='amounts': this {type(model).__name__} comes from a file of an "
                    "earlier version, without sample_totals_. Fit again, or pass loadings_ times "
                    "the totals of the samples."
                )
            values = values * totals[:, None]
    return values if totals is None else np.where(totals[:, None] > 0, values, 0.0)


def amounts_of_new_samples(model: Any, loadings: Array, totals: Array) -> Array:
    """Return the expected counts (n, K) of topics in samples that are not those of the fit.

    Their scale is that of `totals` (n,) if the model has posteriors.
    """
    sums = np.asarray(model.components_, np.float64).sum(axis=1)
    values: Array = np.asarray(loadings, np.float64) * sums
    for posterior, prior in _POSTERIORS:
        if getattr(model, posterior, None) is not None:
            # a parameter of the posterior is its mean times a rate, those of the topic and the
            # sample; they add up to the counts and the prior
            of_prior = np.broadcast_to(getattr(model, prior), values.shape[1])
            rest = totals + of_prior.sum() - values.sum(axis=1)
            rate = rest / np.maximum(loadings.sum(axis=1), np.finfo(np.float64).tiny)
            return np.maximum(values + rate[:, None] * loadings - of_prior, 0.0)
    return values


# Parameters of the posterior of each sample, and of their prior: the difference is expected counts.
_POSTERIORS = (
    ("doc_topic_posterior_", "doc_topic_prior_"),
    ("loadings_shape_", "shape_loadings_"),
)


def checked_loadings(loadings: Any, topic_names: Any = None) -> tuple[Array, tuple[Any, ...]]:
    """Return loadings (n, T) in float64 and the names of the topics."""
    loadings = model_of(loadings)
    if hasattr(loadings, "get_params"):
        if not hasattr(loadings, "loadings_"):
            raise ValueError(
                f"{type(loadings).__name__} has no loadings_: fit it first, or pass what its "
                "transform returns."
            )
        if topic_names is None:
            topic_names = getattr(loadings, "topic_names_", None)
        loadings = loadings.loadings_
    refuse_annotated(loadings, "loadings")
    try:
        values = np.asarray(loadings, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"loadings is a {type(loadings).__name__}: numbers of shape (samples, topics), or a "
            f"fitted model, are needed ({error})."
        ) from None
    if values.ndim != 2 or not values.size:
        raise ValueError(f"loadings has shape {values.shape}; (samples, topics) is needed.")
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        i, k = map(int, np.argwhere(bad)[0])
        raise ValueError(
            f"loadings[{i}, {k}] is {values[i, k]}; non-negative finite numbers are needed."
        )
    if topic_names is None:
        topic_names = getattr(loadings, "columns", range(values.shape[1]))
    return values, checked_names(topic_names, values.shape[1], "topic_names")


def checked_names(names: Any, size: int, what: str) -> tuple[Any, ...]:
    """Return one distinct name for each topic."""
    if isinstance(names, str) or not isinstance(names, Sequence | np.ndarray | range):
        names = [names] if isinstance(names, str) else list(names)
    checked = tuple(name_array(names))
    if len(checked) != size or len(set(checked)) != size:
        raise ValueError(f"{what} has {len(set(checked))} different names; {size} are needed.")
    return checked


def number_of_topic(topic: Any, names: tuple[Any, ...], argument: str) -> int:
    """Return the number of a topic, given by name or number."""
    if topic in names:
        return names.index(topic)
    is_number = isinstance(topic, int | np.integer) and not isinstance(topic, bool)
    if not is_number or not 0 <= int(topic) < len(names):
        names_in_words = ", ".join(map(shown, names))
        raise ValueError(f"{argument}: {shown(topic)} is not a topic; topics are {names_in_words}.")
    return int(topic)


def summed_topics(topics: SampleTopics, sums: TopicSums) -> SampleTopics:
    """Replace topics by the sums of which they are part; other topics follow as they are.

    `sums` maps the name of each sum to its topics, by name or number. A topic is in one sum at
    most, so that proportions still add up to 1.
    """
    if not isinstance(sums, Mapping) or not sums:
        raise ValueError(
            f"topic_sums={shown(sums)}: a dict of names and lists of topics is needed, such as "
            "{'T cells': [1, 4]}."
        )
    parts: dict[Any, tuple[int, ...]] = {}
    for name, of_sum in sums.items():
        what = f"topic_sums[{shown(name)}]"
        if (
            isinstance(of_sum, str)
            or not isinstance(of_sum, Sequence | np.ndarray)
            or not len(of_sum)
        ):
            raise ValueError(f"{what}={shown(of_sum)}: a list of topics is needed.")
        parts[name] = tuple(number_of_topic(topic, topics.topic_names, what) for topic in of_sum)
    used = np.bincount([topic for of_sum in parts.values() for topic in of_sum])
    if (used > 1).any():
        twice = shown(topics.topic_names[int(used.argmax())])
        raise ValueError(
            f"topic_sums: topic {twice} occurs {int(used.max())} times: a topic can be part of one "
            "sum. Call the function once for each of them."
        )
    rest = [k for k in range(len(topics.topic_names)) if k >= used.size or not used[k]]
    names = *parts, *(topics.topic_names[k] for k in rest)
    members = *parts.values(), *((k,) for k in rest)
    if len(members) < 2:
        raise ValueError("topic_sums: one sum of all topics is left, which is the same everywhere.")
    return replace(
        topics, rows=sums_of_topics(topics.rows, members), members=members,
        topic_names=checked_names(names, len(members), "topic_sums"),
    )  # fmt: skip


def sums_of_topics(rows: Array, members: tuple[tuple[int, ...], ...]) -> Array:
    """Return the sums of some columns of rows (n, K), one for each of `members`."""
    # additions of columns in order: sums of NumPy along an axis may depend on the memory layout
    return np.stack([sum(rows[:, k] for k in of_sum) for of_sum in members], axis=1)


def shares_of_topics(amounts: Array) -> Array:
    """Return the share (K,) of each topic in the expected counts (n, K) of all samples."""
    shares: Array = amounts.sum(axis=0) / max(amounts.sum(), np.finfo(np.float64).tiny)
    return shares


def leading_samples(shares: Array, amounts: Array, n_top: int) -> list[Array]:
    """Return the samples of each topic by share, to three decimals, and then by amount."""
    leading = []
    for share, amount in zip(shares.T, amounts.T, strict=True):
        there = np.flatnonzero(amount > 0)  # empty samples have loadings in some models
        leading.append(there[np.lexsort((-amount[there], -share[there].round(3)))[:n_top]])
    return leading


def scaled_rows(values: Array) -> Array:
    """Multiply values by a power of two if squares of their sums would overflow or underflow."""
    largest = float(values.max(initial=0.0))
    if largest == 0 or _LEAST < largest < 1 / _LEAST:
        return values
    scaled: Array = np.ldexp(values, -int(np.frexp(largest)[1]))
    return scaled


_LEAST = 1e-100

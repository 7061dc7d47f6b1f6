"""label_topics: names of topics from a function, such as a question to a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import ArrayLike

from ...counts.argument_types import CountsLike, Topic, Topics
from ...counts.names import shown
from ...counts.warn import warn_caller
from ...methods.topics.score_names import DEFAULT_SCORE, Score
from ...models.base import CountModel
from ...models.leading_features import leading_names
from ...models.pipelines import FittedModel, model_and_input, refuse_swapped
from ...models.topics.topics import topic_names_of
from ..replicates.replicates import check_positive
from .find_samples import checked_topics, find_samples

# Letters of a text in the description of a topic.
_LETTERS = 500


@dataclass(frozen=True)
class TopicDescription:
    """What the function of :func:`nmfscale.label_topics` gets of a topic; ``str()`` makes a text.

    Attributes
    ----------
    number : int
        Number of the topic.
    name : str
        Its present name.
    words : tuple of str
        Its leading features, best first.
    samples : tuple
        Names, or numbers, of its leading samples; empty if the model has no samples.
    proportions : tuple of float
        Their proportions of the topic.
    texts : tuple of str
        Their texts, whole; empty if there are no texts.
    """

    number: int
    name: str
    words: tuple[str, ...]
    samples: tuple[Any, ...]
    proportions: tuple[float, ...]
    texts: tuple[str, ...]

    def __str__(self) -> str:
        """Return words and beginnings of the texts, for the prompt of a language model."""
        lines = [f"Words: {', '.join(self.words)}"]
        contents = self.texts or tuple(map(str, self.samples))
        for content, share in zip(contents, self.proportions, strict=True):
            words = " ".join(content[: 4 * _LETTERS].split())
            cut = chr(0x2026) if len(words) > _LETTERS else ""
            lines.append(f"{'Text' if self.texts else 'Sample'} ({share:.0%} of this topic): "
                         f"{words[:_LETTERS]}{cut}")  # fmt: skip
        return "\n".join(lines)


LabelFunction: TypeAlias = Callable[[TopicDescription], str | None]


def label_topics(
    model: FittedModel,
    function: LabelFunction,
    X: CountsLike | None = None,
    *,
    topics: Topics | None = None,
    n_top: int = 10,
    n_samples: int = 5,
    score: Score = DEFAULT_SCORE,
    texts: ArrayLike | None = None,
    layer: str | None = None,
    raw: bool = False,
) -> CountModel:
    r"""Name topics by a function of their leading words and texts.

    The function may ask a person or a language model. Its answers become the names of the topics,
    which tables, plots, reports and model files have, as after
    :meth:`nmfscale.TopicModel.rename_topics`.

    Parameters
    ----------
    model : fitted model
        A model, or a pipeline that ends with one: see :func:`nmfscale.get.model`.
    function : callable
        Gets a :class:`nmfscale.results.TopicDescription` of each topic, and returns its name, or
        None to keep the present one. ``str(description)`` is a text with words and texts.
    X : counts of shape (n_samples, n_features), default=None
        The samples, as in :func:`find_samples`. None means the samples of the fit.
    topics : int, str, or sequence of these, default=None
        Numbers or names of topics to name; by default all.
    n_top, n_samples : int, default=10, 5
        Numbers of leading features and of leading samples of each topic.
    score : {"relevance", "probability", "divergence", "frex", "lift"}, default="relevance"
        What ranks features, as in :func:`nmfscale.get.top_features`.
    texts : array-like of shape (n_samples,), default=None
        Texts of the samples, as in :func:`find_samples`.
    layer, raw
        As in :meth:`nmfscale.PoissonNMF.fit`: the part of an AnnData object or .h5ad file.

    Returns
    -------
    fitted model
        A copy of the model with names of topics. Topics for which there was no answer keep their
        names.

    Raises
    ------
    TypeError
        If `function` cannot be called.
    ValueError
        If an argument is not valid, as in :func:`find_samples`.
    RuntimeError
        If the function failed for all topics.

    Warns
    -----
    UserWarning
        If the function raised an error for some topics, or returned something that is no text:
        other answers are kept, and the warning names the topics to ask about again. If two topics
        got the same name: the second one gets a number, such as "files (2)". After Ctrl-C, the
        answers so far are kept.

    Examples
    --------
    >>> import nmfscale
    >>> X = nmfscale.as_counts([[4, 0, 2], [0, 3, 0]], feature_names=["file", "axis", "path"])
    >>> model = nmfscale.TopicModel(2, random_state=0).fit(X)
    >>> named = nmfscale.label_topics(model, lambda topic: topic.words[0].upper(), n_top=3)
    >>> sorted(named.topic_names_.tolist())
    ['AXIS', 'FILE']

    With a language model, ``ask`` being the function that sends a prompt to it::

        nmfscale.label_topics(
            pipeline, lambda topic: ask(f"Name this topic in three words.\n{topic}"), texts
        )
    """
    refuse_swapped(model, function, "the function")
    if not callable(function):
        raise TypeError(
            f"function is {shown(function)}: a function of a description of a topic is needed."
        )
    check_positive("n_top", n_top)
    check_positive("n_samples", n_samples)
    fitted, _ = model_and_input(model, None)
    descriptions = _descriptions(
        model, fitted, X, topics, leading_names(fitted, None, n_top, score=score),
        n_top=n_samples, texts=texts, layer=layer, raw=raw,
    )  # fmt: skip
    names = _answers(function, descriptions, topic_names_of(fitted, len(fitted.components_)))
    named: CountModel = fitted.rename_topics(names) if names else fitted
    return named


def _descriptions(
    model: Any, fitted: Any, X: Any, topics: Any, words: list[list[str]], **of_samples: Any
) -> list[TopicDescription]:
    """Return the descriptions of the topics."""
    names = topic_names_of(fitted, len(fitted.components_))
    chosen = checked_topics(topics, tuple(getattr(fitted, "topic_names_", range(len(names)))))
    samples: list[Any] = [()] * len(chosen)
    shares, contents = list(samples), list(samples)
    if X is not None or getattr(fitted, "loadings_", None) is not None:
        leading = find_samples(model, X, topics=chosen, **of_samples)
        for i, numbers in enumerate(leading.samples):
            labels = numbers if leading.sample_names is None else leading.sample_names[numbers]
            samples[i], shares[i] = tuple(labels.tolist()), tuple(leading.proportions[i].tolist())
            if leading.texts is not None:
                contents[i] = tuple(leading.texts[numbers].tolist())
    return [
        TopicDescription(k, names[k], tuple(words[k]), samples[i], shares[i], contents[i])
        for i, k in enumerate(chosen)
    ]


def _answers(
    function: LabelFunction, descriptions: list[TopicDescription], names: list[str]
) -> dict[Topic, str]:
    """Return the new names of topics by number, and warn of topics without an answer."""
    answers: dict[Topic, str] = {}
    failed: dict[int, str] = {}
    first: Exception | None = None
    for topic in descriptions:
        try:
            answer = function(topic)
        except Exception as error:
            first = first or error
            failed[topic.number] = f"{type(error).__name__}: {error}"
            continue
        except KeyboardInterrupt:
            if not answers:
                raise
            warn_caller(f"interrupted at {topic.name}: it and later topics keep their names.")
            break
        if isinstance(answer, str) and answer.strip():
            answers[topic.number] = answer.strip()
        elif answer is not None:
            failed[topic.number] = f"the answer is {shown(answer)}, no name"
    if first is not None and len(failed) == len(descriptions):
        raise RuntimeError(
            f"the function failed for all topics; for {names[descriptions[0].number]}: {first}"
        ) from first
    if failed:
        why = "; ".join(f"{names[k]} ({reason})" for k, reason in failed.items())
        warn_caller(
            f"{len(failed):,} topics have no answer and keep their names: {why}. Ask again with "
            f"topics={[*failed]}."
        )
    return _distinct(answers, names)


def _distinct(answers: dict[Topic, str], names: list[str]) -> dict[Topic, str]:
    """Return answers that differ from each other and from the names of other topics."""
    taken = {name for k, name in enumerate(names) if k not in answers}
    repeated = []
    for k, answer in answers.items():
        number, name = 1, answer
        while name in taken:
            number += 1
            name = f"{answer} ({number})"
        if number > 1:
            repeated.append(answer)
        taken.add(name)
        answers[k] = name
    if repeated:
        warn_caller(
            f"several topics would be {shown(repeated[0])}: later ones have a number after it."
        )
    return answers

"""Poisson non-negative matrix factorization."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from ..methods.conversion import poisson_to_multinomial
from ..methods.topics.merging import merged_factors
from .arguments.parameters import estimator
from .arguments.penalty import penalty_of
from .fitted import Fitted
from .from_components import FromComponents
from .online_factors import OnlineFactorization


@estimator
class PoissonNMF(FromComponents, OnlineFactorization):
    """Poisson non-negative matrix factorization by maximum likelihood.

    The counts are modelled as ``x_ij ~ Poisson((L F^T)_ij)`` with non-negative loadings L and
    factors F. The maximum of the likelihood is also the maximum of the multinomial topic model and
    of the Kullback-Leibler divergence.

    Parameters
    ----------
    n_components : int, default=10
        Number of components (topics) K. A warning is given if there are more than samples or
        features.
    solver : {"auto", "em", "joint-em", "ccd", "scd", "sn", "newton"}, default="auto"
        - "auto": a Newton step on each row of L (after an EM step if far from the optimum) and on
          each row of F (after an EM step if a feature has few counts and all counts are in one
          block), with momentum; begins in float32 if nothing is lost by it, and ends in `dtype`.
          The fastest solver.
        - "em", "ccd", "scd": alternating Poisson regression by EM, cyclic and sequential coordinate
          descent, the methods of [1]_; "sn" is coordinate descent with the step size of scalar
          Newton [2]_, which never raises the loss of a row; "newton" takes an EM step and a Newton
          step on L and on F.
        - "joint-em": both factors from the same expected counts (PLSA) [3]_; supports neither
          priors nor fixed parameters.
    init : {"auto", "topic-score", "clusters", "random", "nndsvd"} or array-like, default="auto"
        Start of the fit; `loadings` and `components` of :meth:`fit` take its place.

        - "auto": if there are at least 3 K samples and 3 K features, "topic-score" up to K = 100
          unless it fails, and "clusters" above; otherwise "random".
        - "topic-score": factors from the corners of a simplex [5]_; loadings by a few steps with
          these factors. Counts of too low a rank get a random start instead, with a warning. With
          more than 4 million nonzero counts, a random subset of the samples is used.
        - "clusters": samples are clustered by k-means in the space of at most 50 singular vectors.
          A component starts from nine tenths of the frequencies in its cluster plus one tenth of
          the overall frequencies; loadings as for "topic-score". With more than 4 million nonzero
          counts, a random subset of the samples is clustered.
        - "random": uniform numbers, scaled so that the expected total of each sample is its total
          count.
        - "nndsvd": positive parts of the singular vectors [6]_, zeros raised to a small constant,
          everything scaled to the total count.
        - array of shape (n_samples,): labels of K clusters. Components start as for "clusters"; a
          sample starts with nine tenths in the component of its cluster, and one tenth is spread
          over all components.
    max_iter : int, default=1000
        Maximum number of iterations, each one pass over the rows and one over the columns.
    tol : float, default=1e-4
        The fit has converged when the largest KKT residual, relative to the mean total of a sample
        (for L) and of a feature (for F), is at most `tol`, and the expected remaining gain in
        log-likelihood is at most 0.5 (or 5,000 times `tol`). With 0, exactly `max_iter` iterations
        are run.
    gain_tol : float, default=None
        The fit has also converged, on a plateau, if the last third of its iterations gained at most
        this share of the log-likelihood and the expected remaining gain is no larger, or if thirty
        iterations did not increase it. None means `tol` / 1000; with 0 only `tol` ends a fit.
    n_init : int or "auto", default="auto"
        Number of starts; the fit with the highest likelihood is kept. `converged_` means that a fit
        is at a local maximum, not that the maximum is a good one. "auto" means 3 with init="auto"
        if `tol` is positive and no factors to start from are given, and 1 otherwise; 1 takes about
        0.4 of the time of 3, and often ends lower. With init="auto", starts are of different kinds
        in turn: that of a single start, "clusters", and "random". The fit of a start ends when
        about 1e-4 for each count is left to gain in log-likelihood, at least 3 and at most 100. It
        is abandoned, after 60 iterations at the earliest, when it will hardly exceed the best one;
        only the best is continued to its end. With ``tol=0`` all starts run all iterations.
    n_moves : int, default=0
        Number of moves to try after the fit, which may leave its local maximum; the model is fitted
        again from each. The new fit is kept if its likelihood is higher by more than 0.5, and
        abandoned as soon as it will hardly be. Later moves start from the best fit, so that it
        never ends lower than without moves. A move either has one topic less, merged or deleted,
        and another one more, split or added [4]_; or it exchanges topics with a different start
        (`n_init`) or an earlier move; or it continues the fit for a few iterations with a random
        half of the samples, and then with all of them. Most moves cost a fifth to a half of a fit.
        Not possible if something is fixed. `max_iter` limits each fit.
    seeds : dict of str to list of str, or path, default=None
        Names of features that topics are to have, such as ``{"fonts": ["font", "fonts"]}``, or the
        path of a GMT file (:func:`nmfscale.read_gmt`). Topic k has the seeds, and the name, of the
        k-th entry; further topics have no seeds, nor have those with an empty list. Seeds that `X`
        lacks are left out with a warning. See Notes.
    seed_weight : float, default=0.1
        Pseudo-counts of a seed in its topic, as a share of its occurrences in `X`, at most 1e6.
        With 1 a topic has about twice the share of its seeds that it has by the counts.
    inner_iter : int, default=None
        Steps on each row in an iteration; None means 4 for "em", "scd" and "sn", 1 for "ccd" and
        "newton". Not used by "auto" and "joint-em".
    extrapolate : bool, default=True
        Whether to use momentum ("auto") or the extrapolation of Ang and Gillis (the other solvers).
        Not used by "joint-em".
    prior_factors, prior_loadings : float, array-like or tuple, default=None
        Gamma prior, given as shape alpha or (alpha, rate): the fit maximises the posterior. alpha
        is at least 1: a number, one for each component, or an array of the shape of F (n_features,
        n_components) or L. The default rate is 1, but 0 for an alpha of 1, which means no prior.
    penalty : SparsityPenalty, default=None
        Penalty that makes the loadings or the components sparse, with solver="joint-em":
        :class:`nmfscale.experimental.SparsityPenalty`. Other solvers refuse it.
    batch_shape : float or "auto", default="auto"
        Shape a of the prior of the efficiencies of features in batches (`batch` of :meth:`fit`).
        They have mean 1 and variance 1 / a. "auto" estimates it; without differences
        between batches it becomes infinite, and all efficiencies 1, as with ``np.inf``. With 0
        there is no prior.
    learning_decay, learning_offset : float, default=0.7, 10.0
        A batch of :meth:`partial_fit`, n of the s samples so far, has weight ``(learning_offset + s
        / n) ** -learning_decay``; the first has all weight.
    integer : {"warn", "allow", "require"}, default="warn"
        How to treat counts that are not whole numbers. "warn": log-normalised values, as after
        ``scanpy.pp.log1p``, are refused, because their exponentials less 1 are multiples of whole
        counts in each sample; other fractions, such as TF-IDF or counts corrected for ambient RNA,
        are fitted with a warning. "allow": any values are fitted. "require": any fraction is
        refused.
    dtype : {"float32", "float64"}, default=None
        Type of the factors and of the arithmetic at the end of a fit. None means float64, whatever
        the type of the counts: the same counts give the same bits in any type. With None,
        ``transform`` returns float32 for counts in float32, as scikit-learn expects. "float32"
        halves the memory of the factors, but its rounding can hide remaining gains. Sums over
        samples are always float64.
    n_threads : int, default=None
        Number of threads, at most 4,096; -1 means all processors that this process may use. None
        means the same if nonzero counts times components are a million or more, and otherwise one
        thread, as small work gains almost nothing from a second. The environment variable
        ``NMFSCALE_NUM_THREADS`` sets the number for None. A process that was forked from one that
        has used several threads uses one. The result does not depend on the number.
    memory_limit : float or str, default=None
        Maximum memory of the process in bytes, or text such as ``"2GB"``. Counts in a file that do
        not fit are read from it in every iteration, and loadings that do not fit are kept on disk.
        A fit, ``transform`` or ``score`` that cannot run within the limit is refused. None means
        the free memory.
    random_state : int, RandomState instance or None, default=None
        Seed of the start. None draws a seed, see `seed_`. The likelihood has many local maxima:
        log-likelihoods of converged fits from different seeds can differ by thousands; `n_moves`
        and `n_init` find better ones.
    verbose : int, default=0
        1 shows a progress bar on standard error, 2 prints every iteration; both also show the
        stages of the start and the progress of :meth:`transform` and :meth:`score`.
    callback : callable, default=None
        Function that is called with a dict after every iteration; the fit ends if it returns a true
        value.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Factors, the transpose of F.
    loadings_ : ndarray of shape (n_samples, n_components)
        Loadings L of the fitted samples.
    history_ : structured ndarray
        One record for each iteration: ``iteration``, ``seconds`` since the start of the fit,
        ``loglik``, ``loglik_multinomial``, ``deviance``, ``kkt_loadings``, ``kkt_factors``
        (relative, as for `tol`), ``change_loadings`` and ``change_factors`` (largest change
        relative to the mean), ``zeros_loadings`` and ``zeros_factors`` (shares), ``momentum``, and
        ``bytes_read`` from files so far. The residuals are measured at iterations 20, 40, 80, ...,
        at the last one, and whenever they may be near `tol`. In between they are estimated: the
        residual at the point where the next update of a factor starts, times the ratio of both at
        the last measurement. ``pandas.DataFrame(model.history_)`` gives a table. With several
        starts, it has those of the best one. With moves (`n_moves`), the records of each move that
        was kept follow those of the fit that it changed, so that `loglik` falls at a move before it
        rises further; those of other moves are left out.
    loglik_ : float
        Poisson log-likelihood of the fit, weighted as it was; with priors, plus the log prior
        without its constant; minus the `penalty`. With batches, the marginal log-likelihood of the
        counts, for any efficiencies under their prior (see Notes); ``loglik_multinomial`` and
        ``deviance`` of `history_` are those with `batch_efficiencies_`.
    converged_ : bool
        Whether a stopping rule of convergence ended the fit, `tol` or `gain_tol`: then little is
        left to gain from this start. With ``tol=0`` there is no such rule.
    stop_reason_ : {"converged", "plateau", "precision", "max_iter", "callback", "interrupted"}
        Why the fit ended. `converged_` is True for "converged" (`tol`) and "plateau" (`gain_tol`).
        It is False for "precision", where the fit makes no more progress but rounding in float32
        may hide a remaining gain; and for "max_iter", "callback" and "interrupted" (Ctrl-C), which
        end a fit that could go on.
    interrupted_ : bool
        Whether Ctrl-C was pressed: iterations, further starts or moves may be missing.
    seed_ : int or None
        Seed of the start: `random_state`, or the seed that was drawn for None; a fit with this seed
        has the same bits. None if `random_state` is a RandomState.
    warnings_ : ndarray of str
        Warnings of the fit.
    n_iter_ : int
        Number of iterations, the length of `history_`.
    n_features_in_ : int
        Number of features.
    unseen_features_ : ndarray of shape (n_features,), bool
        Features without any count in the fit, and without fixed factors or priors of their own.
        Their counts in new samples are left out.
    feature_names_in_, sample_names_ : ndarray of str
        Names, if the input has them. Otherwise `sample_names_` is None, and `feature_names_in_`
        does not exist. Names of samples may also be numbers, bytes, or tuples of them.
    obs_ : mapping of str to ndarray of shape (n_samples,), or None
        Columns with a value for each sample, from ``obs`` of an AnnData object, file or store:
        numbers, or text with None for missing labels. None if the input has none.
    feature_labels_ : ndarray of shape (n_features,), object
        Names of features that are not all text: numbers, bytes, or tuples of a MultiIndex. It
        exists only in this case, in place of `feature_names_in_`, which scikit-learn reserves for
        text. Features of new counts are matched with those of the fit by name, see
        :meth:`transform`.
    modalities_ : ndarray of shape (n_features,)
        Modality of each feature, if the counts have modalities: see :func:`join_modalities`.
    feature_weights_ : ndarray of shape (n_features,), float64
        Weight of each feature in the log-likelihood, if the counts have weights. Factors and
        expected counts are those of the counts as they are; `loglik_` and `history_` have the
        weighted log-likelihood, and so has :meth:`score`, per count times its weight.
    of_text_ : bool
        True if features are words; otherwise it does not exist. Words that new samples lack are
        then taken as 0 (`missing` of :meth:`transform`).
    sample_totals_ : ndarray of shape (n_samples,), float64
        Sum of the counts of each fitted sample, without those of weight 0. Samples with a total of
        0 hold no information on topics: :func:`permutation_test` and similar functions leave them
        out.
    feature_totals_ : ndarray of shape (n_features,), float64
        Sum of the counts of each feature in the fit, in the same way.
    starts_ : structured ndarray of shape (n_starts,)
        One record for each start (see `n_init`): its ``iterations``; ``objective``, the
        log-likelihood or log posterior at their end; ``reason``, in bytes, why they ended, as in
        `stop_reason_`, or "behind" if the start was abandoned, or "nearly" if little was left to
        gain; and whether the fit of this start was ``kept``.
    moves_ : structured ndarray
        One record for each move that was tried (see `n_moves`): its ``kind``, in bytes
        ("merge-split", "merge-add", "delete-split", "delete-add", "exchange" or "reweight");
        ``merged_first``, ``merged_second``, ``deleted`` and ``split``, the topics that it merged,
        deleted and split, numbered as in the best fit until then, or -1; ``source``, the number of
        the start, or ``n_init`` plus that of the move, whose topics it took, or -1; ``iterations``
        of the new fit; ``gain``, its log-likelihood at its end minus that of the best fit; and
        whether it was ``kept``. `history_` is that of the last fit, which continues the best move
        to its end.
    row_weights_ : ndarray of shape (n_samples,), float64, or None
    has_size_factors_ : bool
        Whether `size_factors` was passed to :meth:`fit`; :meth:`transform` then needs them, too.
    fixed_topics_, fixed_features_, fixed_samples_ : ndarray of bool, or None
        Arguments of :meth:`fit`, which :func:`bootstrap_fit` uses again.
    has_missing_entries_ : bool
        Whether entries were missing, or had weights other than 1, according to `data_weights`.
    measured_ : ndarray of shape (n_panels, n_features), bool, or None
    panel_ : ndarray of shape (n_samples,), int, or None
        Features of each panel, and the panel number of each sample, if `measured` was passed to
        :meth:`fit` and is not True everywhere; otherwise None.
    batches_ : ndarray of shape (n_batches,), or None
    batch_ : ndarray of shape (n_samples,), int, or None
        Labels of the batches, in the order of their categories or sorted, and the number of the
        batch of each sample; None if `batch` was not passed to :meth:`fit`.
    batch_efficiencies_ : ndarray of shape (n_batches, n_features), float64, or None
        Efficiency e_bj of each feature in each batch: the posterior mean, 1 where nothing is known
        of it. With batch_shape=0, the maximum likelihood estimate; the geometric mean over the
        batches, weighted by expected counts, is then 1 for each feature.
    batch_shape_ : float, or None
        Shape a of their prior, as estimated or given.
    topic_names_ : ndarray of shape (n_components,), object
        Names of topics, if they were set by :meth:`rename_topics`, or are those of `seeds`.
    n_batch_iter_, n_samples_seen_ : int
        Number of batches, and of their samples, since :meth:`partial_fit` was called first; the
        samples of a fit before it count. These and the next two exist after `partial_fit` only.
    mean_counts_, mean_loadings_ : ndarray of shape (n_components, n_features), float64
        Moving averages over batches of the expected counts of each component in a feature, per
        sample, and of the loadings of samples in which the feature was measured. Without priors,
        ``components_`` are the quotients.
    from_table_ : str
        File or type of the table that the components come from (:meth:`from_components`); otherwise
        it does not exist.

    Notes
    -----
    With `batch`, the counts of sample i in batch b are modelled as ``x_ij ~ Poisson(e_bj (L
    F^T)_ij)``, with efficiencies ``e_bj ~ Gamma(a, a)`` of mean 1. They are integrated out: with T
    the counts of a feature in a batch, and M the sum of ``(L F^T)_ij`` over its samples, the fit
    maximises

    ``sum_ij (x_ij log (L F^T)_ij - log x_ij!) + sum_bj [log G(a + T) - log G(a) + a log a - (a + T)
    log(a + M)]``,

    also in a. Efficiencies are the posterior means ``(a + T) / (a + M)``, an EM algorithm. Loadings
    and components are those of efficiencies of 1, comparable between batches.

    Seeds are a Gamma prior of the factors, which for a :class:`TopicModel` is a Dirichlet prior of
    the topics: a seed j of topic k has ``seed_weight`` times ``sum_i x_ij`` pseudo-counts there,
    its shape minus 1, which add to those of `prior_factors`; all other features have none. So a
    frequent and a rare seed have the same effect on their own counts, whatever the size of `X`. A
    seeded topic starts from the counts of samples weighted by the share of its seeds in them; it
    takes the place of the topic of `init` in which its seeds are most frequent. After 20
    iterations, and again when the best of several starts is continued, topics change places, so
    that those with seeds are the ones that explain most of the counts of these. A fit warns of
    topics that explain less than half of them at its end: see :func:`seed_shares`.

    References
    ----------
    .. [1] Carbonetto, Sarkar, Wang, Stephens (2021). Non-negative matrix factorization algorithms
       greatly improve topic model fits. arXiv:2105.13440.
    .. [2] Hien, Gillis (2021). Algorithms for nonnegative matrix factorization with the
       Kullback-Leibler divergence.
    .. [3] Geiger, Park. On the connection between NMF and LDA.
    .. [4] Ueda, Nakano, Ghahramani, Hinton (2000). SMEM algorithm for mixture models. Neural
       Computation 12, 2109-2128.
    .. [5] Ke, Wang (2024). Using SVD for topic modeling. Journal of the American Statistical
       Association 119, 434-449.
    .. [6] Boutsidis, Gallopoulos (2008). SVD based initialization: a head start for nonnegative
       matrix factorization. Pattern Recognition 41, 1350-1362.

    Examples
    --------
    >>> from nmfscale import PoissonNMF
    >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
    >>> model = PoissonNMF(n_components=2, random_state=0).fit(X)
    >>> model.inverse_transform(model.loadings_).round(2) + 0
    array([[4., 0., 2., 0.],
           [0., 3., 0., 6.],
           [8., 0., 4., 0.],
           [4., 3., 2., 6.]])
    >>> model.converged_
    True
    """

    def _take_components(self, values: NDArray[Any]) -> None:
        super()._take_components(values)
        self._keep_no_batch(self.batch_shape)

    def poisson_factors(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the loadings and factors of the fitted Poisson NMF.

        A further fit of either model can start from these factors:
        ``model.fit(X, loadings=L, components=F.T)``.

        Returns
        -------
        L : ndarray of shape (n_samples, n_components)
            Loadings. For a :class:`TopicModel` they include the size factors of the samples, so
            that expected counts are ``L @ F.T``.
        F : ndarray of shape (n_features, n_components)
            Factors, of the same dtype.

        Raises
        ------
        NotFittedError
            If the model is not fitted, or comes from a table (:meth:`from_components`).

        Examples
        --------
        >>> from nmfscale import TopicModel
        >>> X = [[4, 0, 2, 0], [0, 3, 0, 6], [8, 0, 4, 0], [4, 3, 2, 6]]
        >>> L, F = TopicModel(n_components=2, random_state=1).fit(X).poisson_factors()
        >>> (L @ F.T).round(2) + 0
        array([[4., 0., 2., 0.],
               [0., 3., 0., 6.],
               [8., 0., 4., 0.],
               [4., 3., 2., 6.]])
        """
        check_is_fitted(self, "components_")
        self._check_samples()
        L, F = self._factors()
        return np.ascontiguousarray(L), np.ascontiguousarray(F)

    def _factors(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return L and F: the inverse of `_keep`."""
        return self.loadings_, self.components_.T

    def _arguments_of_start(
        self, rows: NDArray[Any], share: float = 1.0
    ) -> dict[str, NDArray[Any]]:
        L, F = self.poisson_factors()
        return {"loadings": np.ascontiguousarray(L[rows]) * share, "components": F.T}

    def _multinomial(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the topic proportions (n, K) and the topics (m, K) of the multinomial model."""
        multinomial = poisson_to_multinomial(self.loadings_, self.components_.T)
        return multinomial.proportions, multinomial.frequencies

    def _keep(self, fitted: Fitted, sizes: NDArray[Any] | None) -> None:
        self.components_ = np.ascontiguousarray(fitted.arrays["F"].T)
        self.loadings_ = fitted.arrays["L"]
        self.loglik_ = fitted.objective

    def merged_arrays(self, parts: list[list[int]]) -> dict[str, NDArray[Any]]:
        self._check_samples()
        L, F = merged_factors(self.loadings_, self.components_.T, parts)
        return {"loadings_": L, "components_": np.ascontiguousarray(F.T)}

    def _loadings_of(self, L: NDArray[Any]) -> NDArray[Any]:
        penalty = penalty_of(self.penalty)
        rescales = penalty.weight and penalty.only_rescales and penalty.on == "loadings"
        return L / (1 + penalty.weight) if rescales else L

    def _held(self) -> tuple[NDArray[Any], NDArray[Any] | float]:
        return self.components_.T, 1.0

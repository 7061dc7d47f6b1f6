"""The result of a correspondence analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...counts.argument_types import check_option
from ...counts.names import name_array
from ...models.tables import Columns
from ..results.files import Result
from ..results.origin import Origin

Array = NDArray[Any]
Points: TypeAlias = Literal["topics", "groups"]


@dataclass(frozen=True)
class CorrespondenceAnalysis(Result):
    """Coordinates of T topics and R groups on A axes, and the inertia of each axis.

    Axes are in decreasing order of inertia; there are at most ``min(T, R) - 1``. The sign of an
    axis has no meaning.

    Attributes
    ----------
    table : ndarray of shape (T, R)
        Weights of topics in groups that were analysed.
    topic_coordinates : ndarray of shape (T, A)
        Principal coordinates of the topics (rows). Squared distances between them are chi-square
        distances between the shares of the groups in these topics.
    group_coordinates : ndarray of shape (R, A)
        Principal coordinates of the groups (columns).
    inertias : ndarray of shape (A,)
        Principal inertias: squared singular values.
    total_inertia : float
        Sum of the inertias: the chi-square statistic of the table divided by its sum.
    topics, groups : tuple
        Names.
    units : str
        What the table sums: "units" or "samples".
    equal_weights : str
        What has weight one: "units" or "samples".
    scale : str
        What was summed: "proportions" or "amounts".
    origin : Origin
        What it was made from: names of the columns of labels, `groups`, `units` and `strata`, and
        `topic_words`, the leading features of topics.

    Notes
    -----
    The table of :meth:`columns` and :meth:`to_frame` has a row for each topic, then for each
    group: ``kind`` ("topic" or "group"), ``name``, ``mass``, ``inertia`` (the part of the total
    inertia), and for each axis a, from 1, ``axis_a`` (principal coordinate), ``contribution_a``
    and ``cosine_a`` (squared).
    """

    table: Array
    topic_coordinates: Array
    group_coordinates: Array
    inertias: Array
    total_inertia: float
    topics: tuple[Any, ...]
    groups: tuple[Any, ...]
    units: str = "samples"
    equal_weights: str = "units"
    scale: str = "proportions"
    origin: Origin = Origin()

    @property
    def explained(self) -> Array:
        """Share of each axis in the total inertia, (A,)."""
        return self.inertias / (self.total_inertia or 1.0)

    @property
    def topic_masses(self) -> Array:
        """Share of each topic in the sum of the table, (T,)."""
        masses: Array = self.table.sum(axis=1) / self.table.sum()
        return masses

    @property
    def group_masses(self) -> Array:
        """Share of each group in the sum of the table, (R,)."""
        masses: Array = self.table.sum(axis=0) / self.table.sum()
        return masses

    def contributions(self, of: Points = "topics") -> Array:
        """Return the share of each topic or group in the inertia of each axis.

        Parameters
        ----------
        of : {"topics", "groups"}, default="topics"
            Topics or groups.

        Returns
        -------
        ndarray of shape (T, A) or (R, A)
            Columns sum to one.
        """
        masses, coordinates = self.masses_and_coordinates(of)
        return masses[:, None] * coordinates * coordinates / self.inertias

    def cosines(self, of: Points = "topics") -> Array:
        """Return the share of each axis in the squared distance of each topic or group from 0.

        Parameters
        ----------
        of : {"topics", "groups"}, default="topics"
            Topics or groups.

        Returns
        -------
        ndarray of shape (T, A) or (R, A)
            Squared cosines, which sum to one along the axes: how well an axis shows a point.
        """
        squares = self.masses_and_coordinates(of)[1] ** 2
        total = squares.sum(axis=1, keepdims=True)
        return squares / np.where(total > 0, total, 1.0)

    def _columns(self) -> Columns:
        parts: list[Columns] = []
        points: Points
        for points, names in (("topics", self.topics), ("groups", self.groups)):
            masses, coordinates = self.masses_and_coordinates(points)
            kinds = np.full(len(masses), points[:-1], object)
            part: Columns = {"kind": kinds, "name": name_array(names)}
            part |= {"mass": masses, "inertia": masses * (coordinates * coordinates).sum(axis=1)}
            for what, values in (
                ("axis", coordinates), ("contribution", self.contributions(points)),
                ("cosine", self.cosines(points)),
            ):  # fmt: skip
                part |= {f"{what}_{a + 1}": values[:, a] for a in range(values.shape[1])}
            parts.append(part)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def masses_and_coordinates(self, of: Points) -> tuple[Array, Array]:
        """Return masses (T,) or (R,) and principal coordinates (T, A) or (R, A).

        Parameters
        ----------
        of : {"topics", "groups"}
            Topics or groups.

        Returns
        -------
        tuple of ndarray
            Masses, then coordinates.
        """
        check_option("of", of, Points)
        if of == "topics":
            return self.topic_masses, self.topic_coordinates
        return self.group_masses, self.group_coordinates

    def __repr__(self) -> str:
        """Sizes, and the inertia of the leading axes."""
        T, R = self.table.shape
        shares = ", ".join(f"{share:.0%}" for share in self.explained[:3])
        of_axes = f", of which axes explain {shares}" if shares else ""
        return (
            f"<CorrespondenceAnalysis: {T} topics x {R} groups, inertia {self.total_inertia:.3g}"
            f"{of_axes}>"
        )

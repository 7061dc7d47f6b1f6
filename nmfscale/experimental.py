"""Methods whose names, arguments and results may change in any release.

They are tested and documented like all others. What differs is the promise: outside of this module,
a release changes public names only with a notice in the change log of the release before.
"""

from .inference.features.noisy_pairs import noisy_pairs
from .inference.features.pyldavis import to_pyldavis
from .inference.groups.correspondence import correspondence_analysis
from .inference.replicates.jackknife import jackknife_fit
from .models.arguments.penalty import SparsityPenalty
from .models.supervised import supervision_from_variances

__all__ = [
    "SparsityPenalty", "correspondence_analysis", "jackknife_fit", "noisy_pairs",
    "supervision_from_variances", "to_pyldavis",
]  # fmt: skip

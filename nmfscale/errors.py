"""Errors and warnings with a class of their own.

All others are built-in ones: a ValueError for an argument or for data with a fault, an OSError for
a file that cannot be opened. NotFittedError and ConvergenceWarning are those of scikit-learn.
"""

from sklearn.exceptions import ConvergenceWarning, NotFittedError

from .cluster.tasks import BlockFailedError, ClusterError, NoWorkersError, SchedulerLostError
from .counts.short_samples import ShortSamplesWarning
from .counts.sizes import MemoryLimitError
from .counts.warn import LeftSeedsWarning, ModalityDepthWarning
from .engine.checkpoint import CheckpointError
from .storage.arrays import DamagedFileError
from .storage.journal import JournalError
from .storage.locks import FileInUseError
from .storage.store_blocks import DamagedStoreError

__all__ = [
    "BlockFailedError", "CheckpointError", "ClusterError", "ConvergenceWarning",
    "DamagedFileError", "DamagedStoreError", "FileInUseError", "JournalError", "LeftSeedsWarning",
    "MemoryLimitError", "ModalityDepthWarning", "NoWorkersError", "NotFittedError",
    "SchedulerLostError", "ShortSamplesWarning",
]  # fmt: skip

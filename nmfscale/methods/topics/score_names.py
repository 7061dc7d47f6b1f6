"""Names of the scores that rank features: without NumPy, so that the help of commands is quick."""

from typing import Literal, TypeAlias, get_args

Score: TypeAlias = Literal["relevance", "probability", "divergence", "frex", "lift"]
SCORES = get_args(Score)
# What ranks features wherever they are shown or measured: docs/topic_quality.md has the reasons.
DEFAULT_SCORE: Score = "relevance"

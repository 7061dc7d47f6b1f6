"""Names of the scores that rank features: without NumPy, so that the help of commands is quick."""

SCORES = ("relevance", "probability", "divergence", "frex", "lift")
# What ranks features wherever they are shown or measured: docs/topic_quality.md has the reasons.
DEFAULT_SCORE = "relevance"

"""The contract of a model: what every estimator of counts promises, as checks to run.

Models of other packages are tested by the same code as those of this one. It needs pytest.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ImportError("nmfscale.testing needs pytest: pip install pytest") from error

# so that a failed assertion shows its values
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("checks", "doors", "places")))

from .check import check_model, model_checks  # noqa: E402

__all__ = ["check_model", "model_checks"]

"""Questions about a fit, answered by resampling."""

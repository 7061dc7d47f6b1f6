"""The mathematics: the only door to the kernels."""

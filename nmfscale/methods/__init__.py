"""The mathematics: no other folder uses the kernels."""

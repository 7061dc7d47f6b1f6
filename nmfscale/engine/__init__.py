"""Runs any model over blocks of counts: threads, files, clusters, checkpoints."""

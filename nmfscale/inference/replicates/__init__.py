"""Repeated fits and numbered replicates, in this process or on a cluster; bootstrap, jackknife."""

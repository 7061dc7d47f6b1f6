"""Weights of samples, features and single counts; features that were not measured."""

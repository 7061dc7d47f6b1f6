"""Separable NMF: the choice of anchors."""

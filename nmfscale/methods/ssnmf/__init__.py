"""Semi-supervised NMF."""

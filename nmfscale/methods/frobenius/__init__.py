"""NMF with the squared Frobenius norm."""

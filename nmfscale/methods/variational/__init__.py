"""Mean-field variational inference: LDA, Gamma-Poisson, the noisy topic model."""

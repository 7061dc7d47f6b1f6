"""Topics as responses: effects of groups, least squares on covariates, robust errors."""

"""The recipes that ship, as data: one TOML a model, component configs below `architectures`."""

"""The recipes that ship with aotbuild, one TOML a model, and the public configs they are made from."""

"""aotbuild."""

"""Build artifacts: rehearse, prepare, export, compile, package, verify."""

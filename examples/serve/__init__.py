"""A service to copy: a stock diffusers pipeline over HTTP, its components served by artifacts."""

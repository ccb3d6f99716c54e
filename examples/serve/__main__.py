"""`python -m examples.serve [--host HOST] [--port PORT]`; the rest is `settings`'."""

from __future__ import annotations

import argparse

import uvicorn

from .app import app

parser = argparse.ArgumentParser(prog="python -m examples.serve", description=__doc__)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=8000)
arguments = parser.parse_args()
uvicorn.run(app, host=arguments.host, port=arguments.port, access_log=False)

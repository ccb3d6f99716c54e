"""What other libraries remark while they are imported stays off the terminal; errors don't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

IMPORTS = """
import torchao.quantization
from diffusers import FluxPipeline, StableDiffusionXLPipeline
from diffusers.quantizers.torchao import torchao_quantizer
from transformers import CLIPImageProcessor, SiglipImageProcessor
"""
ERRORS = """
import logging
for name in ("torchao", "torch.utils._pytree", "diffusers", "transformers"):
    logging.getLogger(f"{name}.part").error("broken: %s", name)
"""


def errors_of(*arguments: str, **variables: str) -> str:
    """What a Python process with none of the libraries' own variables says on stderr."""
    kept = {n: v for n, v in os.environ.items() if not n.endswith("_VERBOSITY")}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**kept, **variables}
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_imports_say_nothing_when_they_are_quietened() -> None:
    assert errors_of("-c", IMPORTS) != ""
    quietened = f"from aotbuild.commands.quiet import quieten\nquieten()\n{IMPORTS}"
    assert errors_of("-c", quietened) == ""


def test_errors_are_shown_when_libraries_are_quietened() -> None:
    code = f"from aotbuild.commands.quiet import quieten\nquieten()\n{IMPORTS}{ERRORS}"
    said = errors_of("-c", code)
    for name in ("torchao", "torch.utils._pytree", "diffusers", "transformers"):
        assert f"broken: {name}" in said


def test_plan_says_what_it_does_and_nothing_else_on_stderr(tmp_path: Path) -> None:
    command = ("plan", "tiny", "--gpu", "cpu", "--store", str(tmp_path))
    lines = errors_of("-m", "aotbuild", *command).splitlines()
    assert lines
    assert all(line.startswith("pipeline  ") for line in lines), lines

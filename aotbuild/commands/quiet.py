"""Third-party remarks that help nobody at a prompt are kept off it; our own warnings aren't."""

from __future__ import annotations

import logging
import os
import warnings

LOGGERS = ("torchao", "torch.utils._pytree")
"""Libraries that remark on optional parts of theirs while they are imported."""

VARIABLES = ("DIFFUSERS_VERBOSITY", "TRANSFORMERS_VERBOSITY")
"""These two set their loggers' levels as they are imported, and ask the environment for it."""


def quieten() -> None:
    """From here on, and in child processes, these libraries' warnings are dropped.

    Their errors still show, and who sets the variables has the last word.
    """
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for variable in VARIABLES:
        os.environ.setdefault(variable, "error")
    warnings.filterwarnings("ignore", category=FutureWarning, module="diffusers")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")

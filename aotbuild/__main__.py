"""`python -m aotbuild`: the same program as `aotbuild`, see `cli`."""

import sys

from aotbuild.cli import main

sys.exit(main())

#!/usr/bin/env bash
# The published ladder of ssd-1b, batch 1, 30 steps, and what ahead-of-time adds to it. Further
# arguments go to `bench ladder`: --checkpoint PATH|REPO for real weights, --resume to go on.
set -euo pipefail
out=${OUT:-bench-results/ssd-1b}
aotbuild bench ladder ssd-1b --steps 30 --out "$out" "$@"
aotbuild bench report "$out" --out "$out/report"

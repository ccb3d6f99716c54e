#!/usr/bin/env bash
# The published ladder of sd15, batch 1, 30 steps, and what ahead-of-time adds to it. Further
# arguments go to `bench ladder`: --checkpoint PATH|REPO for real weights, --resume to go on.
set -euo pipefail
out=${OUT:-bench-results/sd15}
aotbuild bench ladder sd15 --steps 30 --out "$out" "$@"
aotbuild bench report "$out" --out "$out/report"

#!/usr/bin/env bash
# Denoising steps a second of the published tables: text-to-image, inpainting, ControlNet, IF's
# three stages and SDXL, batch 1, 4 and 16, beside the published figures of other machines.
set -euo pipefail
out=${OUT:-bench-results/throughput}
aotbuild bench throughput sd15 sd15-inpaint sd15-controlnet if-i-m if-ii-m sd-x4-upscaler sdxl \
    --batch 1,4,16 --out "$out" "$@"
aotbuild bench report "$out" --against published --out "$out/report"

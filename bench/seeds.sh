#!/usr/bin/env bash
# make seeds: the source systems' experiments on this machine, the originals' figures beside ours
# (docs/seeds.md). Figures: build/seeds/seeds.json; page with plots: build/seeds/seeds.html.
# QUICK=1: all of it small, in less than a minute; its figures mean nothing. Arguments name single
# experiments. Nothing here passes or fails.
set -euo pipefail
# shellcheck source=bench/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_packages valgrind gcc g++ libc6-dev python3 python3-matplotlib
[[ -e $root/build/release/liblanemalloc.so ]] || "$root/tools/build" release
flags=()
[[ ${QUICK:-0} != 1 ]] || flags=(--quick)
# Debian's interpreter is the one that sees Debian's matplotlib.
exec /usr/bin/python3 "$root/bench/seeds/run.py" "${flags[@]}" "$@"

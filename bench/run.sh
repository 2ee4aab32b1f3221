#!/usr/bin/env bash
# make bench: lanemalloc against the C library and the peers, on this machine.
#   pairs     instructions and time of a malloc+free pair        build/bench/micro.json
#   workloads multi-thread workloads, time and peak memory       build/bench/suite.json
#   startup   what a small program pays to start
# QUICK=1: fewer rounds, at most 5 minutes. ROUNDS=N overrides the rounds of the workloads.
# Nothing here passes or fails: the limits that must hold are in tests/golden/run.sh.
set -euo pipefail
# shellcheck source=bench/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_packages valgrind gcc g++ libc6-dev cmake make python3 clang-19
need_python
"$root/bench/peers/build.sh"
if [[ ! -e $root/build/release/liblanemalloc.so ]]; then
  warn "bench: build/release/liblanemalloc.so is not there (make build): the peers alone are measured"
fi

say "== machine"
"$python" - "$root/bench" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import common
for name, value in common.machine().items():
    print(f"  {name}: {value}")
PYTHON

if [[ ${QUICK:-0} == 1 ]]; then
  micro=(--rounds 7 --pairs 1000000) suite=(--rounds "${ROUNDS:-3}" --scale 0.5) start=(--runs 31)
else
  micro=(--rounds 11 --steps) suite=(--rounds "${ROUNDS:-5}") start=(--runs 61)
fi
say "== pairs"
"$python" "$root/bench/micro/run.py" "${micro[@]}" --json "$root/build/bench/micro.json"
say "== startup"
"$python" "$root/bench/startup/run.py" "${start[@]}"
say "== workloads (this takes minutes)"
"$python" "$root/bench/suite.py" "${suite[@]}" --json "$root/build/bench/suite.json"
say
say "Figures as JSON: build/bench/micro.json, build/bench/suite.json. Machine load at the end: $(cut -d' ' -f1-3 /proc/loadavg)"

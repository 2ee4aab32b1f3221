#!/usr/bin/env bash
# make bench: lanemalloc against the C library and the peers, on this machine: rates of workloads in
# their steady state, real programs, single calls, memory after the end, pairs of a malloc and its
# free, start-up. Takes an hour at most.
#   build/bench/suite.html   the page
#   build/bench/suite.md     the tables of docs/performance.md
#   build/bench/suite.json   all figures
# QUICK=1: fewer peers and lines, in 10 minutes at most. MINUTES=N: another budget. ROUNDS=N: at
# most so many rounds (5). A budget drops lines, the least important first, but makes none shorter
# and gives none fewer than three rounds; what it cuts is said in the output. Lines and their order:
# bench/suite/lines.py. When a line is steady: bench/suite/observe.py. Arguments go to
# bench/suite/main.py, which also runs parts of it. Nothing here passes or fails, unless lanemalloc
# itself fails: the limits that must hold are in tests/golden/run.sh.
set -euo pipefail
# shellcheck source=bench/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [[ ${QUICK:-0} != [01] ]]; then
  warn "bench: QUICK must be 0 or 1, not '$QUICK'"
  exit 2
fi
need_packages valgrind linux-perf gcc g++ libc6-dev cmake make python3 python3-rich \
  python3-matplotlib clang-19
"$root/bench/peers/build.sh"
if [[ ! -e $root/build/release/liblanemalloc.so ]]; then
  warn "bench: build/release/liblanemalloc.so is not there (make build):" \
    "the peers alone are measured"
fi

flags=(--all --rounds "${ROUNDS:-5}" --json "$root/build/bench/suite.json"
  --page "$root/build/bench/suite.html" --markdown "$root/build/bench/suite.md")
# What has been installed and built so far is part of the budget; some minutes are left for it to be
# a measurement.
budget=57 least=10
[[ ${QUICK:-0} != 1 ]] || budget=9 least=4 flags+=(--quick)
left=$((budget * 60 - SECONDS))
((left > least * 60)) || left=$((least * 60))
minutes=${MINUTES:-$(awk -v s="$left" 'BEGIN { printf "%.2f", s / 60 }')}

# Debian's interpreter is the one that sees Debian's rich and matplotlib.
status=0
/usr/bin/python3 "$root/bench/suite/main.py" "${flags[@]}" --minutes "$minutes" "$@" || status=$?
((status != 2)) || exit 2
say
say "Page: build/bench/suite.html. Tables: build/bench/suite.md. Figures: build/bench/suite.json." \
  "Took $((SECONDS / 60)) min $((SECONDS % 60)) s."
exit "$status"

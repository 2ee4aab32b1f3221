#!/usr/bin/env bash
# Builds the cache, runs it over a pool whose requests stay made and over malloc with the making
# each time, in turns, and shows requests a second beside what was contended. Every request is
# checked. Called by hand, and by tests/examples/run.sh.
# Usage: examples/object-cache/run.sh [SECONDS [ROUNDS]]    seconds of a run, 3; rounds, 3.
# THREADS=n: 4.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
readonly kSeconds=${1:-3} kRounds=${2:-3} kThreads=${THREADS:-4}

"$root/tools/install-packages" g++ libc6-dev
library=$root/build/release/liblanemalloc.so
[[ -e $library ]] || "$root/tools/build" release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
g++ -std=c++17 -O2 -g -Wall -Wextra -Werror -pthread -I"$root/include" cache.cpp "$library" \
  -Wl,-rpath,"${library%/*}" -o "$work/cache"

figure() { sed -nE "s/^lanemalloc: $1: ([0-9]+)$/\1/p" "$work/figures"; }
value() { sed -n "s/^$1 //p" "$work/out"; }

printf '%-8s %12s %12s %10s %12s %12s %14s %14s %12s\n' cache requests/s made waits 'senders met' \
  refills 'failed entries' 'lane waits' 'region waits'
for ((round = 0; round < kRounds; round++)); do
  for cache in pool malloc; do
    if ! "$work/cache" "$cache" "$kThreads" "$kSeconds" >"$work/out" 2>"$work/figures" ||
        [[ $(value wrong) != 0 ]]; then
      echo "FAILED: $cache: $(tr '\n' ' ' <"$work/out")$(head -n 3 "$work/figures")"
      exit 1
    fi
    printf '%-8s %12.0f %12s %10s %12s %12s %14s %14s %12s\n' "$cache" \
      "$(awk "BEGIN { print $(value handled) / $(value seconds) }")" "$(value made)" \
      "$(value waits)" "$(value senders_met)" "$(value refills)" "$(figure 'failed lane entries')" \
      "$(figure 'waits for a lane')" "$(figure 'region lock waits')"
  done
done
echo 'every answer was right'

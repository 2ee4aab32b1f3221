#!/usr/bin/env bash
# Builds the interpreter, runs it over a heap and over malloc in turns, each with several threads,
# checks every result, and shows runs a second and the peak beside what the allocator has counted of
# contention; then the instructions of an allocation with its free, by valgrind.
# Called by hand, and by tests/examples/run.sh.
# Usage: examples/interpreter/run.sh [SECONDS [ROUNDS]]    seconds of a run, 3; rounds, 3.
# THREADS=n: interpreters, 4.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
readonly kSeconds=${1:-3} kRounds=${2:-3} kThreads=${THREADS:-4}

"$root/tools/install-packages" g++ libc6-dev valgrind
library=$root/build/release/liblanemalloc.so
[[ -e $library ]] || "$root/tools/build" release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
g++ -std=c++17 -O2 -g -Wall -Wextra -Werror -pthread -I"$root/include" interpreter.cpp "$library" \
  -Wl,-rpath,"${library%/*}" -o "$work/interpreter"

fail() {
  echo "FAILED: $*"
  exit 1
}

# measure MEMORY THREADS RUNS [COMMAND...]: sets result to its line.
measure() {
  local memory=$1 threads=$2 runs=$3
  shift 3
  result=$("$@" "$work/interpreter" "$memory" "$threads" "$runs" 2>"$work/figures") ||
    fail "$memory: $(tail -n 3 "$work/figures")"
}
figure() { sed -nE "s/^lanemalloc: $1: ([0-9]+)$/\1/p" "$work/figures"; }
value() { sed -nE "s/.*\<$1=([0-9.]+).*/\1/p" <<<"$result"; }
calculate() { awk "BEGIN { printf \"$1\", $2 }"; }

# As many runs as take about so long here.
measure heap "$kThreads" 20
runs=$(calculate %.0f "1 + 20 * $kSeconds / ($(value seconds) + 0.001)")

printf '%-8s %8s %15s %10s %15s %12s %13s %14s\n' memory runs/s allocations/s 'peak KiB' \
  'failed entries' 'lane waits' 'region waits' 'remote frees'
for ((round = 0; round < kRounds; round++)); do
  for memory in heap malloc; do
    measure "$memory" "$kThreads" "$runs"
    printf '%-8s %8.0f %15.0f %10s %15s %12s %13s %14s\n' "$memory" \
      "$(calculate %f "$(value runs) / $(value seconds)")" \
      "$(calculate %f "$(value allocations) / $(value seconds)")" "$(value peak_kib)" \
      "$(figure 'failed lane entries')" "$(figure 'waits for a lane')" \
      "$(figure 'region lock waits')" "$(figure 'remote frees')"
  done
done

# instructions MEMORY: of one interpreter, for each allocation; what it takes to start drops out.
instructions() {
  local runs all=() allocated=()
  for runs in 1 6; do
    LANEMALLOC_OPTIONS=decay_ms=-1 measure "$1" 1 "$runs" valgrind --tool=callgrind \
      --callgrind-out-file="$work/profile"
    all+=("$(sed -nE 's/^(summary|totals): ([0-9]+).*/\2/p' "$work/profile" | head -n 1)")
    allocated+=("$(value allocations)")
  done
  calculate %.1f "(${all[1]} - ${all[0]}) / (${allocated[1]} - ${allocated[0]})"
}
heap=$(instructions heap) malloc=$(instructions malloc)
echo "instructions for each allocation, with its free and the interpreting in between:" \
  "$heap with the heap, $malloc with malloc," \
  "ratio $(calculate %.3f "$heap / $malloc")"
echo 'every answer was right'

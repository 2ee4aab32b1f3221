#!/usr/bin/env bash
# Builds the program and runs it with the map without locks, its nodes from malloc and from a pool,
# and with the standard library's map behind a reader-writer lock and behind a mutex, in turns.
# Every answer is checked. Shows lookups and updates a second, and what they took of CPU time,
# beside what was contended: failed compare-exchanges of the map, waits for its lock, deferred frees
# that found too many others waiting, and for how long they waited for readers; then the ratio of
# the medians of lookups. With fewer CPUs than threads locks are rarely met, and a reader that is
# preempted in a section holds up the writers. Called by hand, and by tests/examples/run.sh.
# Usage: examples/hash-map/run.sh [SECONDS [ROUNDS]]    seconds of a run, 3; rounds, 3. READERS=n,
# 2; WRITERS=n, 2.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
readonly kSeconds=${1:-3} kRounds=${2:-3} kReaders=${READERS:-2} kWriters=${WRITERS:-2}

"$root/tools/install-packages" g++ libc6-dev
library=$root/build/release/liblanemalloc.so
[[ -e $library ]] || "$root/tools/build" release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
g++ -std=c++17 -O2 -g -Wall -Wextra -Werror -pthread -I"$root/include" hash_map.cpp "$library" \
  -Wl,-rpath,"${library%/*}" -o "$work/hash_map"

fail() {
  echo "FAILED: $*"
  exit 1
}
value() { sed -nE "s/.*\<$1=([0-9.]+).*/\1/p" <<<"$result"; }
calculate() { awk "BEGIN { printf \"$1\", $2 }"; }
median() { sort -n "$work/$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

printf '%-8s %11s %11s %11s %11s %11s %11s %10s %12s %10s %9s\n' map lookups/s 'CPU each' \
  updates/s 'CPU each' 'failed CAS' 'lock waits' deferred 'full shares' waited 'peak KiB'
for ((round = 0; round < kRounds; round++)); do
  for map in malloc pool rwlock mutex; do
    result=$("$work/hash_map" "$map" "$kReaders" "$kWriters" "$kSeconds" 2>&1) ||
      fail "$map: $result"
    [[ $(value lookups) -gt 0 && $(value updates) -gt 0 ]] || fail "$map: $result"
    lookups=$(calculate %.0f "$(value lookups) / $(value seconds)")
    echo "$lookups" >>"$work/$map"
    printf '%-8s %11s %8.0f ns %11.0f %8.0f ns %11s %11s %10s %12s %7.0f ms %9s\n' "$map" \
      "$lookups" "$(calculate %f "$(value reading_ns) / $(value lookups)")" \
      "$(calculate %f "$(value updates) / $(value seconds)")" \
      "$(calculate %f "$(value writing_ns) / $(value updates)")" "$(value failed_changes)" \
      "$(value lock_waits)" "$(value deferred)" "$(value helped)" \
      "$(calculate %f "$(value waited_us) / 1000")" "$(value peak_kib)"
  done
done
lock_free=$(median malloc)
echo "lookups, of the map without locks:" \
  "$(calculate %.2f "$lock_free / $(median rwlock)") times those behind the reader-writer lock," \
  "$(calculate %.2f "$lock_free / $(median mutex)") times those behind the mutex;" \
  "with nodes from a pool" \
  "$(calculate %.2f "$(median pool) / $lock_free") times those with nodes from malloc"
echo 'every answer was right'

#!/usr/bin/env bash
# The benchmark suite's own tests: when a line is steady, its arithmetic, its budget and its runner, against programs that die, hang or
# stand still; and the synthetic workloads, small. Takes a minute. Called by: tests/run.sh, or by hand. Needs the release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages python3 python3-rich python3-matplotlib valgrind g++ libc6-dev
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
/usr/bin/python3 tests/bench/suite_test.py 2>&1 | tee "$log" || status=1
bash tests/bench/workloads.sh 2>&1 | tee -a "$log" || status=1
# Each closes with a line of counts; this is their sum.
awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { passed += $1; failed += $3; skipped += $5; parts++ }
  END { failed += 2 - parts; print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped" }' "$log"
exit "$status"

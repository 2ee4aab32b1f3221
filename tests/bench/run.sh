#!/usr/bin/env bash
# The benchmark suite's own tests: when a line is steady, its arithmetic, its budget and its runner,
# against programs that die, hang or stand still; and the synthetic workloads, small. Takes a
# minute. Called by: tests/run.sh, or by hand. Needs the release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages python3 python3-rich python3-matplotlib valgrind g++ libc6-dev
# shellcheck source=tests/part.sh
source tests/part.sh
# The runner waits for programs; the others take seconds.
mapfile -t classes \
  < <(sed -nE 's/^class (\w+)\(unittest.TestCase\).*/\1/p' tests/bench/suite_test.py |
  grep -vx Runner)
! runs least || add_up /usr/bin/python3 tests/bench/suite_test.py "${classes[@]}"
! runs least || add_up /usr/bin/python3 tests/bench/seeds_test.py
! runs rest || add_up /usr/bin/python3 tests/bench/suite_test.py Runner
! runs rest || add_up bash tests/bench/workloads.sh
finish

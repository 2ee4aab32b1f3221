#!/usr/bin/env bash
# The arithmetic of the benchmark suite, and its runner against programs that fail, hang or do other work. Takes seconds.
# Called by: tests/run.sh, or by hand.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages python3 python3-rich python3-matplotlib
exec /usr/bin/python3 tests/bench/suite_test.py

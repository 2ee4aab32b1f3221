#!/usr/bin/env bash
# The long version of the tests, for before a release: ten times the work in every part that
# repeats, emulated machines with many CPUs, and the linters.
# Called by: make verify. Takes hours on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
LANEMALLOC_TEST_SCALE=${LANEMALLOC_TEST_SCALE:-10} tests/run.sh "$@" || status=1
[[ $# -gt 0 ]] || tests/machines/run.sh || status=1
[[ $# -gt 0 ]] || tools/lint || status=1
exit "$status"

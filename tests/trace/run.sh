#!/usr/bin/env bash
# Tests `lanemalloc trace`, `replay` and `tune` against programs with known calls and real ones, and the examples of docs/trace.md.
# Called by: tests/run.sh, and by hand: run.sh [NAME...] runs some of check.py's tests.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
tools/install-packages g++ gcc libc6-dev python3 sqlite3 redis-server redis-tools
python=$(tools/python-env duckdb)
[[ -e build/release/lanemalloc-replay && -e build/release/liblanemalloc.so ]] || tools/build release >&2
ulimit -c 0
exec "$python" tests/trace/check.py --scale "${LANEMALLOC_TEST_SCALE:-1}" "$@"

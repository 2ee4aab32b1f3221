#!/usr/bin/env bash
# Tests `lanemalloc trace`, `replay` and `tune` against programs with known calls and real ones, and
# the examples of docs/trace.md.
# Called by: tests/run.sh, and by hand: run.sh [NAME...] runs some of check.py's tests.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
# shellcheck source=tests/part.sh
source tests/part.sh
readonly kLeast=(every_kind_of_call totals_of_threads_and_frees_by_others handler_that_allocates
  fork_and_exec
  killed_program_loses_nothing_that_was_done errors_say_what_to_do replay_makes_the_same_calls)
packages=(g++ gcc libc6-dev python3)
! runs rest || packages+=(sqlite3 redis-server redis-tools)
tools/install-packages "${packages[@]}"
python=$(tools/python-env duckdb)
[[ -e build/release/lanemalloc-replay && -e build/release/liblanemalloc.so ]] ||
  tools/build release lanemalloc_tool >&2
mapfile -t others < <("$python" tests/trace/check.py --list |
  grep -vxF -f <(printf '%s\n' "${kLeast[@]}"))
names=("$@")
if [[ $# -eq 0 ]]; then
  ! runs least || names+=("${kLeast[@]}")
  ! runs rest || names+=("${others[@]}")
fi
ulimit -c 0
exec "$python" tests/trace/check.py --scale "${LANEMALLOC_TEST_SCALE:-1}" "${names[@]}"

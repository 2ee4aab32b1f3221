#!/usr/bin/env bash
# Builds the bounds programs and runs every case under the library: how much memory stays resident,
# when, and where.
# Called by: tests/run.sh, and by hand.
#   run.sh [--lib PATH|glibc] [--only PROGRAM[/CASE]] [--scale N] [--self-test]
# --self-test only shows that the burst test fails where nothing is given back (decay_ms=-1).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/stress/harness.sh
source "$here/../stress/harness.sh"
requested_self_test=""
arguments=()
for argument in "$@"; do
  if [[ $argument == --self-test ]]; then requested_self_test=1; else arguments+=("$argument"); fi
done
# Without --self-test: unlike that of the stress tests, this one needs the library.
parse_arguments "${arguments[@]}"

programs=(hand_off burst footprint)

# With glibc its own malloc is the mutant: it keeps what other threads freed.
self_test() {
  local wrong=0 name
  [[ -e $library || $library == glibc ]] || { echo "  no library: $library"; return 1; }
  build_program burst
  for name in small-freed-by-others small-main-sleeps; do
    if run_program "$library" burst "$name" 0.5 60 decay_ms=-1 >"$work/self" 2>&1; then
      echo "  burst $name passes with decay_ms=-1: $(head -n 1 "$work/self")"
      wrong=1
    elif grep -q 'still resident' "$work/self"; then
      echo "  burst $name fails with decay_ms=-1, as it should: $(head -n 1 "$work/self")"
    else
      echo "  burst $name fails for another reason: $(head -n 1 "$work/self")"
      wrong=1
    fi
  done
  return "$wrong"
}

if [[ -z $only || -n $requested_self_test ]] && runs rest; then
  count_self_test self_test "the burst test fails where nothing is given back"
fi
if [[ -n $requested_self_test ]]; then close; fi
# The least: those that wait more than they work, with the default entry.
for program in "${programs[@]}"; do
  [[ $program == hand_off ]] && half=rest || half=least
  ! runs "$half" || run_all_cases "$program" "$scale" "" plain
done
if [[ $library != glibc ]] && runs rest; then
  for lanes in shared:2 percpu; do
    for program in "${programs[@]}"; do
      run_all_cases "$program" "$scale" "lanes=$lanes" "$lanes"
    done
  done
fi
close

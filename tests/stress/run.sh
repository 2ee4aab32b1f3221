#!/usr/bin/env bash
# Builds the stress programs and runs every case under the library, then again (at a smaller scale)
# with checked=1.
# Called by: tests/run.sh, and by hand. What it shares with tests/bounds/run.sh is in harness.sh.
#   run.sh [--lib PATH|glibc] [--only PROGRAM[/CASE]] [--scale N] [--sanitize asan-ubsan|tsan]
#   [--self-test]
# --sanitize  links storm, thread_exit, safepoints, heaps and pools with
# build/PRESET/liblanemalloc_prefixed.a instead of preloading.
# --self-test only shows that the programs fail with a malloc that is too simple and pass with one
# that is not.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/stress/harness.sh
source "$here/harness.sh"
parse_arguments "$@"

programs=(storm thread_exit many_threads fork_load signals safepoints heaps pools)

# The mutants must fail where they are wrong; the plain one must pass, or the programs ask for too
# much.
expect_case() {  # pass|fail, mutant, program, case, scale
  local status=0 patience=50
  if [[ $1 == fail ]]; then patience=5; fi
  run_program "$work/$2.so" "$3" "$4" "$5" "$patience" "" >"$work/self" 2>&1 || status=$?
  if [[ $1 == pass && $status == 0 || $1 == fail && $status != 0 ]]; then
    echo "  $2: $3 $4: $1, as it should: $(head -n 1 "$work/self")"
  else
    echo "  $2: $3 $4 should $1: $(head -n 1 "$work/self")"
    return 1
  fi
}
self_test() {
  local wrong=0 variant
  for variant in plain unsafe locked; do
    "${CC:-gcc}" -O1 -g -fPIC -shared -fno-builtin "-DMUTANT_${variant^^}" "$here/mutant_malloc.c" \
      -o "$work/$variant.so" -pthread
  done
  build_program storm
  build_program fork_load
  build_program signals
  build_program single_step
  expect_case pass plain storm 8-threads 0.05 || wrong=1
  expect_case pass plain signals nested 0.1 || wrong=1
  expect_case pass plain single_step same-class-handler 0.02 || wrong=1
  expect_case pass plain fork_load atfork-handlers 0.02 || wrong=1
  expect_case fail unsafe storm 8-threads 0.2 || wrong=1
  expect_case fail unsafe signals nested 0.3 || wrong=1
  expect_case fail unsafe single_step same-class-handler 0.1 || wrong=1
  expect_case pass locked storm 8-threads 0.05 || wrong=1
  expect_case fail locked signals nested 0.3 || wrong=1
  expect_case fail locked single_step allocating-handler 0.1 || wrong=1
  expect_case fail locked fork_load from-main 0.3 || wrong=1
  return "$wrong"
}
# With a fault that a variable puts in, the case must fail, and begin by saying so in words that
# match.
sees_fault() {  # VARIABLE PROGRAM CASE PATTERN [SCALE]
  local status=0
  build_program "$2"
  (export "$1=1"; run_program "$library" "$2" "$3" "${5:-0.2}" 100 "") >"$work/self" 2>&1 ||
    status=$?
  head -n 1 "$work/self" | sed 's/^/  /'
  ((status != 0)) && grep -qE "$4" "$work/self"
}
readers_see_reuse() {
  sees_fault LANEMALLOC_TEST_NO_GRACE safepoints sections \
    '^FAILED safepoints sections: (found|again|it is another object)'
}
limits_are_looked_at() {
  sees_fault LANEMALLOC_TEST_NO_LIMITS heaps limits \
    '^FAILED heaps limits: .*, (and its|whose) limit is'
}
# With a limit that is one too high, with objects that are used after they were freed, and with some
# that are freed twice: that is often a crash, since the program writes to what it has.
pools_are_watched() {
  sees_fault LANEMALLOC_TEST_OVER_LIMIT pools mixed \
    '^FAILED pools mixed: .* objects in use at a limit of ' || return 1
  sees_fault LANEMALLOC_TEST_FREE_EARLY pools mixed \
    '^FAILED pools mixed: (.*: object .* damaged|ctor of|dtor of)' || return 1
  [[ $(uname -m) != x86_64 ]] || sees_fault LANEMALLOC_TEST_FREE_TWICE pool_steps \
    same-pool-handler '' 0.05
}

if [[ -n $sanitize ]]; then
  programs=(storm thread_exit safepoints heaps pools)
  options=""
  # The scavenger runs on a bare thread that shares its creator's thread-local storage, where TSan
  # keeps its state; and of restartable sequences it sees nothing.
  if [[ $sanitize == tsan ]]; then options=decay_ms=-1,lanes=owned; fi
  for program in "${programs[@]}"; do run_all_cases "$program" "$scale" "$options" "$sanitize"; done
  close
fi
if [[ -z $only || -n $self_test_only ]] && runs rest; then
  count_self_test self_test "mutants fail, the plain malloc passes"
fi
if [[ -n $self_test_only ]]; then close; fi

# The least: with the default entry, a tenth of the work.
run_programs() {  # PROGRAM..
  local program lanes least smaller
  least=$(awk -v s="$scale" 'BEGIN { print s * 0.1 }')
  smaller=$(awk -v s="$scale" 'BEGIN { print s * 0.3 }')
  if ! runs rest; then
    for program; do run_all_cases "$program" "$least" "" least; done
    return 0
  fi
  for program; do run_all_cases "$program" "$scale" "" plain; done
  [[ $library != glibc ]] || return 0
  for program; do
    for lanes in shared:2 percpu; do
      run_all_cases "$program" "$smaller" "lanes=$lanes" "$lanes"
    done
    run_all_cases "$program" "$smaller" checked=1 checked
  done
}

# In a process of its own, which writes down what it counts.
run_beside() {  # PROGRAM..
  passed=0 skipped=0 failures=()
  run_programs "$@" >"$work/beside.log" 2>&1
  printf '%s\n' "$passed $skipped" "${failures[@]}" >"$work/beside"
}
add_beside() {
  local process=$1 more=(0 0) names=("" "what ran beside the others did not end well")
  wait "$process" || true
  cat "$work/beside.log"
  if [[ -e $work/beside ]]; then
    mapfile -t names <"$work/beside"
    read -ra more <<<"${names[0]}"
  fi
  passed=$((passed + more[0])) skipped=$((skipped + more[1]))
  failures+=("${names[@]:1}")
}

# These go step by step, in one thread: beside the others.
readonly kSteps=(single_step pool_steps torn_off)
if [[ -z $only ]]; then
  run_beside "${kSteps[@]}" &
  beside=$!
  run_programs "${programs[@]}"
  add_beside "$beside"
else
  run_programs "${programs[@]}" "${kSteps[@]}"
fi
# self_tests_run PROGRAM: whether those that show that it can fail do.
self_tests_run() { [[ -z $only || $only == "$1"* ]] && runs rest; }
if [[ $library != glibc ]]; then
  if self_tests_run safepoints; then
    count_self_test readers_see_reuse "without grace periods readers see what is used again"
  fi
  if self_tests_run heaps; then
    count_self_test limits_are_looked_at "without limits the program sees them exceeded"
  fi
  if self_tests_run pools; then
    count_self_test pools_are_watched \
      "objects beyond the limit, used after their free, and freed twice are seen"
  fi
fi
close

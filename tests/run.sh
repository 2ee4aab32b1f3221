#!/usr/bin/env bash
# Runs the tests: all parts in order, or those named. One line for each part; its output is in
# build/test-logs/<part>.log.
# Called by: make check, make test, make test-long, tests/verify.sh. part.sh says what
# LANEMALLOC_TEST_DEPTH does.
# LANEMALLOC_TEST_SCALE (default 1) multiplies the work of the parts that repeat.
# A part ends its output with `N passed, N failed, N skipped`. It has failed when that says so, when
# it is missing, when its script exits with an error, or when it ran nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/part.sh
source tests/part.sh

readonly kParts=(layers format unit rust tool aarch64 golden semantics preload seeing profile trace
  bench cpp simulator misuse projects packages examples docs fuzz stress model borders bounds)
# These leave CPUs idle and bear company: some that are neighbors here run at the same time.
readonly kTogether=(layers format unit rust tool golden semantics preload seeing profile trace bench
  cpp simulator misuse projects packages examples docs aarch64)
readonly kAtOnce=3
# make test runs all of them.
readonly kWithoutRest=(layers format examples docs)
readonly kLogs=$PWD/build/test-logs
export LANEMALLOC_TEST_SCALE=${LANEMALLOC_TEST_SCALE:-1}
if [[ ! $LANEMALLOC_TEST_SCALE =~ ^[1-9][0-9]*$ ]]; then
  echo "run.sh: LANEMALLOC_TEST_SCALE must be a whole number from 1 up," \
    "not '$LANEMALLOC_TEST_SCALE'" >&2
  exit 2
fi
# A part that hangs is ended; this is no bound on speed.
readonly kWatchdogSeconds=$((1800 * LANEMALLOC_TEST_SCALE))
readonly kCounts='^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$'
readonly kSkip='^[[:space:]]*\[? *(skip|skipped) *\]?[: ]'

# Sets passed, failed, skipped from a part's log. layers and unit close more than once; of a script
# only the last closing line counts, for it may show those of its own parts.
read_counts() {
  local part=$1 log=$2 line
  passed=0 failed=0 skipped=0
  while IFS= read -r line; do
    [[ $line =~ $kCounts ]] || continue
    [[ $part == @(layers|unit) ]] || passed=0 failed=0 skipped=0
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
  done <"$log"
}

# Also what the part model would find only after half an hour: a change of src/ that takes away a
# mutant's place.
run_layers() {
  tools/install-packages python3 && tools/check-layers --self-test && tools/check-layers &&
    tools/check-headers &&
    python3 tests/model/anchors.py && python3 tests/model/run.py --quotes
}
run_format() { tools/check-format; }

# One preset's unit tests, in as many processes as there are CPUs. gtest says why a test was skipped
# before it says which. The least, and sanitizers unless there is time, leave out the pages of other
# sizes, which only change numbers. The least also has threads that are torn off at each instruction
# by one entry alone.
run_unit_preset() {
  local preset=$1 log=$kLogs/unit-$1.log status=0 filter='*' ok bad skip shards shard pids=()
  if [[ $preset == dev ]]; then
    local -r rest='*/16K*:*/64K*:*TornTest*/4KS*:*TornTest*/4KPerCpu'
    runs rest || filter="-$rest"
    runs least || filter=$rest
  elif [[ $LANEMALLOC_TEST_SCALE -eq 1 ]]; then
    filter='-*/16K*:*/64K*'
  fi
  # The thread sanitizer has no shadow for some files that the loader maps, and ends when their
  # heads are read: once in 30 runs here.
  [[ $preset != tsan ]] || filter+=$([[ $filter == *-* ]] && echo ':' || echo '-')'MappingsTest.*'
  echo "== $preset"
  if ! compgen -G 'tests/unit/*_test.cpp' >/dev/null; then
    echo 'FAILED: tests/unit has no *_test.cpp'
    echo '0 passed, 1 failed, 0 skipped'
    return 1
  elif ! tools/build "$preset" unit_tests >"$log" 2>&1; then
    sed 's/^/  | /' "$log"
    echo "FAILED: the $preset preset does not build"
    echo '0 passed, 1 failed, 0 skipped'
    return 1
  fi
  shards=$(nproc)
  for ((shard = 0; shard < shards; shard++)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "build/$preset/unit_tests" \
      --gtest_color=no --gtest_filter="$filter" >"$log.$shard" 2>&1 &
    pids+=($!)
  done
  for shard in "${!pids[@]}"; do wait "${pids[shard]}" || status=$?; done
  cat "$log".* >"$log"
  rm "$log".*
  ok=$(grep -cE '^\[ +OK \] .* \([0-9]+ ms\)$' "$log" || true)
  bad=$(grep -cE '^\[ +FAILED +\] .* \([0-9]+ ms\)$' "$log" || true)
  skip=$(grep -cE '^\[ +SKIPPED +\] .* \([0-9]+ ms\)$' "$log" || true)
  if [[ $status -ne 0 || $bad -gt 0 || $ok -eq 0 ]]; then
    sed 's/^/  | /' "$log"
    echo "FAILED: unit_tests of $preset: exit status $status, $ok tests passed"
    [[ $bad -gt 0 ]] || bad=1
  fi
  awk -v preset="$preset" '
    /^[^ ]+:[0-9]+: Skipped$/ { getline reason; next }
    /^\[ +SKIPPED +\] .* \([0-9]+ ms\)$/ {
      print "SKIP " $4 " (" preset "): " reason
      reason = ""
    }' "$log"
  echo "$ok passed, $bad failed, $skip skipped"
  [[ $bad -eq 0 ]]
}

run_unit() {
  local preset presets=(dev) status=0
  ! runs rest || presets+=(asan-ubsan tsan)
  [[ $LANEMALLOC_TEST_SCALE -eq 1 ]] || presets+=(checked)
  for preset in "${presets[@]}"; do
    run_unit_preset "$preset" || status=1
  done
  return "$status"
}

# The other parts bring their own script, and test what the release preset builds.
run_script() {
  local script=tests/$1/run.sh
  if [[ ! -f $script ]]; then
    echo "FAILED: $script is missing"
    return 1
  fi
  bash "$script"
}

run_part() {
  case $1 in
    layers | format | unit) "run_$1" ;;
    *) run_script "$1" ;;
  esac
}

if [[ ${1-} == --part ]]; then  # this script's own call, under the watchdog
  run_part "$2"
  exit
fi

declare -A running=() started=()  # name by process; when, by name
stop() {
  [[ ${#running[@]} -eq 0 ]] || kill -TERM "${!running[@]}" 2>/dev/null || true
  echo 'interrupted'
  exit 130
}
trap stop INT TERM HUP

# Starts a command under the watchdog, its output to a log. In the background, so that a signal is
# taken at once.
start() {
  local name=$1
  shift
  timeout --kill-after=30 "$kWatchdogSeconds" "$@" >"$kLogs/$name.log" 2>&1 </dev/null &
  running[$!]=$name
  started[$name]=$SECONDS
}

# Waits until one of them ends. Sets ended and status.
await() {
  local process
  status=0
  wait -n -p process "${!running[@]}" || status=$?
  ended=${running[$process]}
  unset "running[$process]"
  [[ $status -ne 124 && $status -ne 137 ]] ||
    echo "FAILED: ended by the watchdog after $kWatchdogSeconds s" >>"$kLogs/$ended.log"
}

# With the helpers of the command: who needs them must not build meanwhile.
build_release() {
  start build tools/build release all lanemalloc_tool
  await
  release_built=yes
  [[ $status -ne 0 ]] || return 0
  release_built=no
  echo 'FAILED build of the release preset'
  tail -n 40 "$kLogs/build.log" | sed 's/^/    /'
}

start_part() {
  local part=$1
  if [[ $part != @(layers|format|unit) ]]; then
    if [[ $release_built == no ]]; then
      start "$part" sh -c "echo 'FAILED: the release preset does not build; see build.log'; exit 1"
      return
    fi
  fi
  start "$part" bash tests/run.sh --part "$part"
}

report_next() {
  local part log word=ok
  await
  part=$ended log=$kLogs/$ended.log
  read_counts "$part" "$log"
  if [[ $status -ne 0 && $failed -eq 0 ]]; then
    failed=1
  elif [[ $((passed + failed + skipped)) -eq 0 ]]; then
    echo 'FAILED: the part ran no test, or did not say how many' >>"$log"
    failed=1
  fi
  [[ $failed -eq 0 ]] || word=FAILED
  echo "$word $part ($passed passed, $failed failed, $skipped skipped," \
    "$((SECONDS - started[$part])) s)"
  if [[ $failed -gt 0 ]]; then
    failed_parts+=("$part")
    # What failed may stand far from the end.
    {
      grep -E '^ *(FAILED|not ok)' "$log" | head -n 20 || true
      tail -n 40 "$log"
    } | sed 's/^/    /'
  fi
  local reason
  while IFS= read -r reason; do
    skip_lines+=("$part: $reason")
  done < <(sed -nE "s/$kSkip+//Ip" "$log")
  all_passed=$((all_passed + passed))
  all_failed=$((all_failed + failed))
  all_skipped=$((all_skipped + skipped))
}
report_all() { while [[ ${#running[@]} -gt 0 ]]; do report_next; done; }

# contains WORD WORD...: whether the first is one of the others.
contains() { [[ " ${*:2} " == *" $1 "* ]]; }

named=("$@")
[[ $# -gt 0 ]] || named=("${kParts[@]}")
parts=() halves=() left_out=()
for part in "${named[@]}"; do
  if ! contains "$part" "${kParts[@]}"; then
    echo "run.sh: unknown part '$part'; the parts are: ${kParts[*]}" >&2
    exit 2
  elif ! contains "$part" "${kWithoutRest[@]}"; then
    halves+=("$part")
  elif [[ $kDepth == rest ]]; then
    continue
  fi
  parts+=("$part")
done
if [[ ${#parts[@]} -eq 0 ]]; then
  echo "run.sh: make test runs all of ${named[*]}" >&2
  exit 2
fi
for part in "${kParts[@]}"; do contains "$part" "${parts[@]}" || left_out+=("$part"); done

all_passed=0 all_failed=0 all_skipped=0 failed_parts=() skip_lines=() release_built=
mkdir -p "$kLogs"
for part in "${parts[@]}"; do
  contains "$part" "${kTogether[@]}" || report_all
  if [[ -z $release_built && $part != @(layers|format|unit) ]]; then
    report_all
    build_release
  fi
  while [[ ${#running[@]} -ge kAtOnce ]]; do report_next; done
  start_part "$part"
  contains "$part" "${kTogether[@]}" || report_all
done
report_all

if [[ ${#skip_lines[@]} -gt 0 ]]; then
  echo 'Skipped:'
  printf '  %s\n' "${skip_lines[@]}"
fi
[[ ${#left_out[@]} -eq 0 ]] || echo "Left out: ${left_out[*]}"
if [[ $kDepth == least && ${#halves[@]} -gt 0 ]]; then
  echo "Left out, for make test-long: the rest of ${halves[*]}"
elif [[ $kDepth == rest ]]; then
  echo "Left out, for make test: the least of ${halves[*]}"
fi
if [[ ${#failed_parts[@]} -gt 0 ]]; then
  echo "Failed: ${failed_parts[*]} (logs in build/test-logs)"
fi
echo "It took $SECONDS s."
echo "$all_passed passed, $all_failed failed, $all_skipped skipped"
[[ $all_failed -eq 0 ]]

#!/usr/bin/env bash
# The synthetic workloads with a fixed amount of work: under the C library's malloc and under
# lanemalloc, with one thread and with three, each does the same work, says which malloc it used and
# gives every figure it promises; and each goes on, with more threads than CPUs, until its observer
# says stop. Bad arguments are named. Called by tests/bench/run.sh, or by hand; needs the release
# build. Takes a minute.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages g++ libc6-dev python3
program=$(python3 bench/workloads/build.py)
readonly program kLibrary=$PWD/build/release/liblanemalloc.so
kKeys='wall_ns cpu_ns operations peak_kib end_kib minor_faults major_faults checksum library'
readonly kKeys
readonly kTail='p50_ns p99_ns p999_ns p9999_ns max_ns preempted'
# shellcheck source=tests/part.sh
source tests/part.sh

# value KEY LINE
value() { sed -nE "s/(^|.* )$1=([^ ]*).*/\2/p" <<<"$2"; }

# has_keys LINE KEY...: each is there with a value.
has_keys() {
  local line=$1 key
  shift
  for key in "$@"; do
    [[ -n $(value "$key" "$line") ]] || { echo "  no $key in: $line"; return 1; }
  done
}

# run_under PRELOAD WORKLOAD THREADS [OPTION...]
run_under() {
  local preload=$1
  shift
  env -u LANEMALLOC_OPTIONS LD_PRELOAD="$preload" timeout 120 "$program" "$@"
}

# compare NAME THREADS KEYS: the same work under both.
compare() {
  local name=$1 threads=$2 theirs ours keys operations=60000
  read -ra keys <<<"$3"
  case $name in
    mleak) operations=100 ;;
    malloc-large) operations=6 ;;
    cache-*) operations=5000 ;;
  esac
  if ! theirs=$(run_under '' "$name" "$threads" --operations "$operations"); then
    fail "$name with $threads threads under the C library"
  elif ! ours=$(run_under "$kLibrary" "$name" "$threads" --operations "$operations"); then
    fail "$name with $threads threads under lanemalloc"
  elif ! has_keys "$theirs" "${keys[@]}" || ! has_keys "$ours" "${keys[@]}"; then
    fail "$name with $threads threads: a figure is missing"
  elif [[ $(value library "$theirs") != */libc.so.6 ||
      $(value library "$ours") != "$kLibrary" ]]; then
    fail "$name: malloc comes from $(value library "$theirs") and $(value library "$ours")"
  elif (($(value operations "$ours") < operations)) && [[ $name != @(mstress|t-test1) ]]; then
    fail "$name with $threads threads: less work than was asked for: $ours"
  elif [[ $(value checksum "$theirs") != "$(value checksum "$ours")" ||
    $(value operations "$theirs") != "$(value operations "$ours")" ]]; then
    fail "$name with $threads threads: not the same work: $theirs / $ours"
  else
    ok "$name with $threads threads"
  fi
}

# refuses VALUE ARGUMENT...: status 2, and one line that names the value.
refuses() {
  local named=$1 status=0 said
  shift
  said=$("$program" "$@" 2>&1) || status=$?
  if [[ $status -eq 2 && $said == *"'$named'"* && $said != *$'\n'* ]]; then
    ok "workloads $*: refused"
  else
    fail "workloads $*: status $status: $said"
  fi
}

while IFS=$'\t' read -r name threads latency idle about; do
  if [[ -z $about || $threads != @(threads|single) || $latency != @(latency|-) ||
      $idle != @(idle|-) ]]; then
    fail "--list: $name $threads $latency $idle $about"
    continue
  fi
  wanted=$kKeys
  if [[ $latency == latency ]]; then
    for tail in $kTail; do wanted+=" malloc_$tail free_$tail"; done
  fi
  compare "$name" 1 "$wanted"
  [[ $threads == single ]] || compare "$name" 3 "$wanted"
done < <("$program" --list)
((passed + failed > 0)) || fail '--list names no workload'

check 'burst-idle --idle gives idle_kib' has_keys \
  "$(run_under "$kLibrary" burst-idle 2 --operations 2000 --idle 0.1)" idle_kib
# With more threads than CPUs.
check 'each workload stops at a word, and has given a rate until then' \
  python3 tests/bench/stops.py "$program" "$kLibrary"
# Eight threads on one CPU: some calls are cut through by the scheduler, and they are in no other
# figure.
if [[ $(uname -m) != x86_64 ]]; then
  skip 'calls in which the scheduler takes the CPU are left out: seen on x86-64 only'
else
  cpu=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
  line=$(LD_PRELOAD='' taskset --cpu-list "$cpu" timeout 120 "$program" server-latency 8 \
    --operations 700000)
  if (($(value malloc_preempted "$line") + $(value free_preempted "$line") > 0)); then
    ok 'calls in which the scheduler takes the CPU are left out'
  else
    fail "server-latency with 8 threads on one CPU left out no call: $line"
  fi
fi
refuses nothing nothing 1
refuses 0 larson 0
refuses 65 larson 65
refuses 1.5 larson 1.5
refuses 2 glibc-simple 2
refuses 0 larson 1 --operations 0
refuses x larson 1 --idle x
refuses --size larson 1 --size 3
refuses --operations larson 1 --operations
refuses /nowhere larson 1 --board /nowhere
refuses /dev/null larson 1 --board /dev/null
finish

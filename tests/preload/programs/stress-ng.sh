#!/usr/bin/env bash
# checks: stress-ng --verify: malloc with threads, trees, hashes, thread creation, big heaps: all
# pass, no child was killed
# lanes: percpu
# needs: stress-ng=stress-ng
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

total=0
# stress NAME OPS OPTION…: two instances, verified, a fixed amount of work.
stress() {
  local name=$1 ops=$(($2 * SCALE)) status=0
  shift 2
  under stress-ng --temp-path "$PWD" --verify --metrics-brief --verbose --timeout 150 "--$name" 2 \
    "--$name-ops" "$ops" "$@" >"$name.log" 2>&1 || status=$?
  equal "exit status of --$name" 0 "$status"
  grep -qE 'passed: 2(:|$)|successful run completed' "$name.log" ||
    fail "--$name: $(tail -1 "$name.log")"
  ! grep -E 'fail:|error:|killed|terminated on signal|SIGSEGV|SIGABRT|restarted|OOM' "$name.log" |
    grep -vE 'OOM avoidance|oom adjust' >"$name-bad.log" ||
    fail "--$name: $(head -1 "$name-bad.log")"
  ops=$(awk -v name="$name" '/metrc:/ && $4 == name { print $5; exit }' "$name.log")
  ((ops > 0)) || fail "--$name did nothing"
  total=$((total + ops))
}
stress malloc 400000 --malloc-bytes 32K --malloc-max 4096
stress malloc 100000 --malloc-bytes 64K --malloc-max 1000 --malloc-pthreads 4
stress malloc 5000 --malloc-bytes 4M --malloc-max 32 --malloc-touch --malloc-zerofree
stress tsearch 30
stress hsearch 300
stress tree 20 --tree-size 5000
stress pthread 2000 --pthread-max 64
stress bigheap 2000 --bigheap-growth 64K
mapped stress-ng
ok "$total operations of malloc, tsearch, hsearch, tree, pthread and bigheap verified"

# shellcheck shell=bash
# What tests/stress/run.sh and tests/bounds/run.sh share: arguments, building a program once,
# running one case in a process group of its own, what they count. Sourced, after `here` is set to
# the folder of the programs.
# Variables of the sourcing script; commas belong to the flags:
# shellcheck disable=SC2154,SC2034,SC2054

root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
library=""
only=""
scale=${LANEMALLOC_TEST_SCALE:-1}
sanitize=""
self_test_only=""
failures=()
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ulimit -c 0

parse_arguments() {
  while (($# > 0)); do
    case $1 in
      --lib) library=$2; shift 2 ;;
      --only) only=$2; shift 2 ;;
      --scale) scale=$2; shift 2 ;;
      --sanitize) sanitize=$2; shift 2 ;;
      --self-test) self_test_only=1; shift ;;
      *) echo "unknown argument: $1" >&2; exit 2 ;;
    esac
  done
  if [[ -z $library ]]; then
    library=$root/build/release/liblanemalloc.so
    if [[ -z $sanitize && -z $self_test_only && ! -e $library ]]; then make -C "$root" build >&2; fi
  fi
  if [[ $library != glibc && -z $sanitize && -z $self_test_only ]]; then
    [[ -e $library ]] || { echo "no such library: $library" >&2; exit 2; }
    # A copy, so that a build meanwhile does not change it under running programs.
    cp "$library" "$work/under-test.so"
    library=$work/under-test.so
  fi
}

# It uses what is compiled into programs, which needs the library's thread-local word.
needs_library() { grep -qE '^#include <lanemalloc/(heap|pool).h>' "$here/$1.cpp"; }

build_program() {  # NAME; into $work/NAME
  if [[ -x $work/$1 ]]; then return; fi
  local flags=(-std=c++20 -g -Wall -Wextra -fno-exceptions -fno-rtti -pthread "-I$root/include") \
    link=(-Wl,-z,now)
  case $sanitize in
    "") flags+=(-O2) ;;
    asan-ubsan) flags+=(-O1 -fsanitize=address,undefined -fno-sanitize-recover=all) ;;
    tsan) flags+=(-O1 -fsanitize=thread -Wno-tsan) ;;
    *) echo "unknown sanitizer: $sanitize" >&2; exit 2 ;;
  esac
  if [[ -n $sanitize ]]; then
    if [[ ! -e $root/build/$sanitize/liblanemalloc_prefixed.a ]]; then
      "$root/tools/build" "$sanitize" >&2
    fi
    flags+=(-DLANEMALLOC_TEST_PREFIXED)
    link+=("$root/build/$sanitize/liblanemalloc_prefixed.a" -lstdc++)
  elif needs_library "$1"; then
    link+=("$library")  # by its name, which is that of the one that is preloaded
  fi
  "${CXX:-g++}" "${flags[@]}" "$here/$1.cpp" -o "$work/$1" "${link[@]}"
}

# Runs one case in a process group of its own and leaves nothing of it behind, not even a child that
# hangs.
run_program() {  # LIBRARY PROGRAM CASE SCALE WATCHDOG OPTIONS
  local status=0 pid environment=("LANEMALLOC_TEST_SCALE=$4" "LANEMALLOC_TEST_WATCHDOG=$5"
    "LANEMALLOC_OPTIONS=$6")
  if [[ $6 == *checked=1* ]]; then environment+=(LANEMALLOC_TEST_CHECKED=1); fi
  if [[ $1 != glibc ]]; then environment+=("LD_PRELOAD=$1" "LANEMALLOC_TEST_LIBRARY=$1"); fi
  # timeout makes the process group; env sets the preload for the program alone.
  timeout -k 2 $(($5 + 20)) env "${environment[@]}" "$work/$2" "$3" &
  pid=$!
  wait "$pid" || status=$?
  kill -KILL -- "-$pid" 2>/dev/null || true
  return "$status"
}

run_all_cases() {  # PROGRAM SCALE OPTIONS LABEL
  if [[ -n $only && $only != "$1" && $only != "$1"/* ]]; then return; fi
  if [[ $library == glibc ]] && needs_library "$1"; then
    echo "skipped [$4] $1: the C library has no pools"
    skipped=$((skipped + 1))
    return
  fi
  build_program "$1"
  local name cases status seconds preload=$library output=$work/output.$BASHPID
  if [[ -n $sanitize ]]; then preload=glibc; fi
  cases=$(run_program "$preload" "$1" list 1 60 "")
  for name in $cases; do
    if [[ $only == */* && $only != "$1/$name" ]]; then continue; fi
    status=0
    seconds=$SECONDS
    # A file, not a pipe: a child left behind must not keep this script waiting.
    run_program "$preload" "$1" "$name" "$2" "${LANEMALLOC_TEST_WATCHDOG:-120}" "$3" \
      >"$output" 2>&1 || status=$?
    seconds=$((SECONDS - seconds))
    # "Aborted" and the like are this shell's remarks. More is cut off.
    sed -e '/^.*\/harness\.sh: line/d' -e "s/^\(ok\|skipped\|FAILED\) /\1 [$4, ${seconds} s] /" \
      "$output" | head -n 60 || true
    if ((status != 0)) || grep -q '^FAILED' "$output"; then
      grep -q '^FAILED' "$output" ||
        echo "FAILED [$4, ${seconds} s] $1 $name: ended with status $status"
      failures+=("$1 $name [$4]")
    elif grep -q '^skipped' "$output"; then
      skipped=$((skipped + 1))
    elif grep -q '^ok' "$output"; then
      passed=$((passed + 1))
    else
      echo "FAILED [$4] $1 $name: said nothing"
      failures+=("$1 $name [$4]")
    fi
  done
}

count_self_test() {  # FUNCTION DESCRIPTION
  local seconds=$SECONDS status=0
  "$1" >"$work/self-test" 2>"$work/self-test-errors" || status=$?
  seconds=$((SECONDS - seconds))
  cat "$work/self-test"
  if ((status == 0)); then
    ok "[self-test, ${seconds} s] $2"
  else
    cat "$work/self-test-errors"
    echo "FAILED [self-test, ${seconds} s] $2"
    failures+=("self-test")
  fi
}

close() {
  local failure
  failed=$((failed + ${#failures[@]}))
  for failure in "${failures[@]}"; do echo "failed: $failure"; done
  ((passed + failed + skipped > 0)) || echo "no test matches --only $only" >&2
  finish
}

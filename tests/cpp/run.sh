#!/usr/bin/env bash
# The C++ headers with every standard container: g++ with libstdc++, clang with libc++; C++17 and C++20; every warning an error. Without
# exceptions and RTTI; and over liblanemalloc_prefixed.a. Called by: tests/run.sh, and by hand. Needs the release build.
# Usage: tests/cpp/run.sh [PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages g++ clang-19 libc++-19-dev libc++abi-19-dev binutils libc6-dev
readonly kLibrary=$PWD/build/release/liblanemalloc.so
readonly kFlags=(-Wall -Wextra -Wpedantic -Wshadow -Werror -O0 -pthread -Iinclude)
readonly kGcc=(g++)
readonly kClang=(clang++-19 -stdlib=libc++)
only=${1-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
[[ -e $kLibrary ]] || { echo "FAILED: no library at $kLibrary: run make build first"; exit 1; }

# The arguments that link a program with the library.
shared=("$kLibrary" "-Wl,-rpath,${kLibrary%/*}")
prefixed=(-DLANEMALLOC_PREFIXED "${kLibrary%.so}_prefixed.a")
readonly kWrap="-Wl,--wrap=lane_arena_at_reset" # malloc_and_arenas.cc has it fail

# test_program TITLE SOURCE COMMAND...: builds and runs in the background, two at a time.
names=()
test_program() {
  local title=$1 source=$2 log=$work/${#names[@]}
  shift 2
  [[ -z $only || $source == "$only" ]] || return 0
  names+=("$title")
  while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done
  { "$@" -o "$log.program" "tests/cpp/$source.cc" "${kFlags[@]}" "${link[@]}" && timeout 300 "$log.program"; } >"$log" 2>&1 &
}

# Programs, and a function of the C library that each stands on.
declare -A needs=([malloc_and_arenas]=lane_arena_reset [heaps]=lane_heap_create [pools]=lane_pool_create [safepoints]=lane_safepoint)
exports=$(nm -D --defined-only "$kLibrary" | awk '{ print $3 }')
programs=()
for source in malloc_and_arenas heaps pools safepoints; do
  if grep -qx "${needs[$source]}" <<<"$exports"; then
    programs+=("$source")
  else
    echo "skip: $source: the library has no ${needs[$source]}"
    skipped=$((skipped + 1))
  fi
done

for source in "${programs[@]}"; do
  [[ $source == malloc_and_arenas ]] && wrap=("$kWrap") || wrap=()
  link=("${shared[@]}" "${wrap[@]}")
  for standard in 17 20; do
    test_program "$source by g++, C++$standard" "$source" "${kGcc[@]}" "-std=c++$standard"
    test_program "$source by clang and libc++, C++$standard" "$source" "${kClang[@]}" "-std=c++$standard"
  done
  link=("${prefixed[@]}" "${wrap[@]}")
  test_program "$source over the prefixed library" "$source" "${kGcc[@]}" -std=c++17
done
link=("${shared[@]}")
for standard in 17 20; do
  test_program "no_exceptions by g++, C++$standard" no_exceptions "${kGcc[@]}" "-std=c++$standard" -fno-exceptions -fno-rtti
  test_program "no_exceptions by clang and libc++, C++$standard" no_exceptions "${kClang[@]}" "-std=c++$standard" -fno-exceptions -fno-rtti
done
wait

for i in "${!names[@]}"; do
  if [[ $(tail -n 1 "$work/$i") == ok ]]; then
    echo "ok ${names[i]}"
    passed=$((passed + 1))
  else
    head -n 40 "$work/$i"
    echo "FAILED ${names[i]}"
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 && $passed -gt 0 ]]

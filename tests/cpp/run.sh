#!/usr/bin/env bash
# The C++ headers with every standard container: g++ with libstdc++, clang with libc++; C++17 and
# C++20; every warning an error. Without exceptions and RTTI; and over liblanemalloc_prefixed.a. The
# least: g++ and C++17. Called by: tests/run.sh, and by hand. Needs the release build.
# Usage: tests/cpp/run.sh [PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=tests/part.sh
source tests/part.sh
packages=(g++ libc6-dev)
! runs rest || packages+=(clang-19 libc++-19-dev libc++abi-19-dev)
tools/install-packages "${packages[@]}"
readonly kLibrary=$PWD/build/release/liblanemalloc.so
readonly kFlags=(-Wall -Wextra -Wpedantic -Wshadow -Werror -O0 -pthread -Iinclude)
readonly kGcc=(g++)
readonly kClang=(clang++-19 -stdlib=libc++)
only=${1-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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
  {
    "$@" -o "$log.program" "tests/cpp/$source.cc" "${kFlags[@]}" "${link[@]}" &&
      timeout 300 "$log.program"
  } >"$log" 2>&1 &
}

for source in malloc_and_arenas heaps pools safepoints no_exceptions; do
  wrap=() flags=()
  [[ $source != malloc_and_arenas ]] || wrap=("$kWrap")
  [[ $source != no_exceptions ]] || flags=(-fno-exceptions -fno-rtti)
  link=("${shared[@]}" "${wrap[@]}")
  ! runs least || test_program "$source by g++, C++17" "$source" "${kGcc[@]}" -std=c++17 \
    "${flags[@]}"
  runs rest || continue
  test_program "$source by g++, C++20" "$source" "${kGcc[@]}" -std=c++20 "${flags[@]}"
  for standard in 17 20; do
    test_program "$source by clang and libc++, C++$standard" "$source" "${kClang[@]}" \
      "-std=c++$standard" "${flags[@]}"
  done
  [[ $source != no_exceptions ]] || continue
  link=("${prefixed[@]}" "${wrap[@]}")
  test_program "$source over the prefixed library" "$source" "${kGcc[@]}" -std=c++17
done
wait

for i in "${!names[@]}"; do
  if [[ $(tail -n 1 "$work/$i") == ok ]]; then
    ok "${names[i]}"
  else
    head -n 40 "$work/$i"
    fail "${names[i]}"
  fi
done
finish

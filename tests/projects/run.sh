#!/usr/bin/env bash
# How another project finds the library: find_package and add_subdirectory of CMake, pkg-config, and a
# plain compiler. Each way builds and runs the programs here; a program that was compiled for another
# layout of the hits must not start.
# The least is all but add_subdirectory. Called by: tests/run.sh, and by hand. Needs the release build.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
"$root/tools/install-packages" cmake ninja-build g++ gcc pkg-config >&2
[[ -e $root/build/release/liblanemalloc.so ]] || "$root/tools/build" release >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_PRELOAD LANEMALLOC_OPTIONS
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"

prints_ok() { [[ $("$@" 2>&1 | tee /dev/stderr) == ok ]]; }
# fails_with TEXT COMMAND...: it fails, and says why.
fails_with() {
  local text=$1 said
  shift
  ! said=$("$@" 2>&1) && grep "$text" <<<"$said"
}

check 'it is installed' cmake --install "$root/build/release" --prefix "$work/prefix"
library_folder=$(dirname "$(find "$work/prefix" -name liblanemalloc.so)")

# The latter compiles the libraries once more.
ways=()
! runs least || ways+=(find_package)
! runs rest || ways+=(add_subdirectory)
for way in "${ways[@]}"; do
  flags=(-DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release)
  [[ $way == find_package ]] || flags=(-DLANEMALLOC_FOLDER="$root" -DCMAKE_BUILD_TYPE=Release)
  check "$way is configured" cmake -G Ninja -S "$here" -B "$work/$way" "${flags[@]}"
  check "$way is built" cmake --build "$work/$way"
  for program in malloc_lanemalloc malloc_static fronts_lanemalloc fronts_static fronts_prefixed; do
    check "$way $program" prints_ok "$work/$way/$program"
  done
done
runs least || finish
check 'a package that is not there is not found' fails_with lanemallocConfig.cmake cmake -G Ninja -S "$here" -B "$work/none"

export PKG_CONFIG_PATH=$library_folder/pkgconfig
# shellcheck disable=SC2046  # several words
check 'pkg-config lanemalloc' gcc "$here/uses_malloc.c" -o "$work/by_pc" $(pkg-config --cflags --libs lanemalloc)
check 'the program of it' prints_ok env LD_LIBRARY_PATH="$library_folder" "$work/by_pc"
# shellcheck disable=SC2046
check 'pkg-config lanemalloc-prefixed' g++ -std=c++17 "$here/uses_fronts.cpp" -o "$work/by_pc_prefixed" \
  $(pkg-config --static --cflags --libs lanemalloc-prefixed)
check 'the program of it' prints_ok "$work/by_pc_prefixed"
check 'a plain compiler' gcc "$here/uses_malloc.c" -I"$root/include" -o "$work/plain" \
  "$root/build/release/liblanemalloc.so" -Wl,-rpath,"$root/build/release"
check 'the program of it' prints_ok "$work/plain"

# Hits of another layout: the slot has another name.
cp -r "$root/include" "$work/other"
sed -i 's/lane_thread_slot_of_layout_1"/lane_thread_slot_of_layout_0"/' "$work/other/lanemalloc/hit.h"
check 'a program of another layout of the hits is not linked' fails_with lane_thread_slot_of_layout_0 \
  g++ -std=c++17 -I"$work/other" "$here/uses_fronts.cpp" -o "$work/no" "$root/build/release/liblanemalloc.so"
# A library that had that name once, and has it no more.
gcc -shared -fPIC -x c - -o "$work/libonce.so" <<<'__thread void* lane_thread_slot_of_layout_0;'
check 'linked with a library of that layout' g++ -std=c++17 -I"$work/other" "$here/uses_fronts.cpp" \
  -o "$work/other_layout" "$root/build/release/liblanemalloc.so" -L"$work" -lonce -Wl,-rpath,"$root/build/release:$work"
gcc -shared -fPIC -x c - -o "$work/libonce.so" <<<'int nothing;'
check 'a program of another layout of the hits does not start' fails_with lane_thread_slot_of_layout_0 "$work/other_layout"
finish

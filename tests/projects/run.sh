#!/usr/bin/env bash
# How another project finds the library: find_package and add_subdirectory of CMake, pkg-config, and
# a plain compiler. Each way builds and runs the programs here; a program that was compiled for
# another layout of the hits must not start, and one of a later version must. Programs ask for
# liblanemalloc.so.0, and have the library once.
# And what a build needs where there is no dpkg.
# The least is all but add_subdirectory and what there is about dpkg.
# Called by: tests/run.sh, and by hand. Needs the release build.
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

version=$("$root/tools/version")
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
# A system without dpkg: a folder with all commands but that one, and those that a case leaves out.
without() {
  local name
  rm -rf "${work:?}/bin"
  mkdir "$work/bin"
  ln -s /bin/* /usr/bin/* "$work/bin" 2>/dev/null || true  # many are in both
  for name in dpkg-query "$@"; do rm -f "$work/bin/$name"; done
}
install_packages() { env PATH="$work/bin" "$root/tools/install-packages" "$@"; }
# silent COMMAND...: it succeeds, and says nothing.
silent() { [[ -z $("$@" 2>&1) ]] && "$@" 2>/dev/null; }
# names TEXT... -- COMMAND...: it fails, and says each text.
names() {
  local texts=() said text
  while [[ $1 != -- ]]; do texts+=("$1") && shift; done
  shift
  if said=$("$@" 2>&1); then return 1; fi
  echo "$said"
  for text in "${texts[@]}"; do
    grep -qF -- "$text" <<<"$said" || {
      echo "does not say: $text" && return 1
    }
  done
}
without_dpkg() {
  without
  check 'without dpkg: what is there is enough' silent install_packages cmake ninja-build g++ \
    python3 libc6-dev
  check 'a header that is not there is named' names 'missing: <gtest/gtest.h>' 'apk add gtest-dev' \
    -- env CXX="c++ -nostdinc" PATH="$work/bin" "$root/tools/install-packages" libgtest-dev
  check 'a package that the table lacks is named' names "what Debian's nonesuch has" \
    -- install_packages cmake nonesuch
  without ninja cmake
  check 'a command that is not there is named, for each system' names 'missing: cmake, ninja' \
    'apt-get install' 'cmake ninja-build' 'dnf install cmake ninja-build' 'pacman -S cmake ninja' \
    'apk add cmake samurai' -- install_packages cmake g++ ninja-build
  check 'the build names it' names 'missing: cmake' -- env PATH="$work/bin" "$root/tools/build" \
    release
  # The rest of the build is the same. A copy, for this one has another generator.
  without ninja
  mkdir "$work/tree"
  cp -r "$root"/{CMakeLists.txt,CMakePresets.json,cmake,docs,include,python,src,tests,tools} \
    "$work/tree"
  check 'without dpkg and ninja, make builds' env PATH="$work/bin" "$work/tree/tools/build" \
    release man
  check 'it was make' grep -qx 'CMAKE_GENERATOR:INTERNAL=Unix Makefiles' \
    "$work/tree/build/release/CMakeCache.txt"
  without
  check 'with ninja later, ninja builds' env PATH="$work/bin" "$work/tree/tools/build" release man
  check 'it was ninja' test -e "$work/tree/build/release/build.ninja"
}
! runs rest || without_dpkg
runs least || finish
check 'a package that is not there is not found' fails_with lanemallocConfig.cmake cmake -G Ninja \
  -S "$here" -B "$work/none"

export PKG_CONFIG_PATH=$library_folder/pkgconfig
# shellcheck disable=SC2046  # several words
check 'pkg-config lanemalloc' gcc "$here/uses_malloc.c" -o "$work/by_pc" \
  $(pkg-config --cflags --libs lanemalloc)
check 'the program of it' prints_ok env LD_LIBRARY_PATH="$library_folder" "$work/by_pc"
# shellcheck disable=SC2046
check 'pkg-config lanemalloc-prefixed' g++ -std=c++17 "$here/uses_fronts.cpp" \
  -o "$work/by_pc_prefixed" $(pkg-config --static --cflags --libs lanemalloc-prefixed)
check 'the program of it' prints_ok "$work/by_pc_prefixed"
check 'a plain compiler' gcc "$here/uses_malloc.c" -I"$root/include" -o "$work/plain" \
  "$root/build/release/liblanemalloc.so" -Wl,-rpath,"$root/build/release"
check 'the program of it' prints_ok "$work/plain"

# The library's name for the loader. If the library is preloaded too, by any path, that name finds
# it.
asks_for() {
  [[ $(readelf -d "$2" | sed -n 's/.*(NEEDED).*\[\(liblanemalloc.*\)\]/\1/p') == "$1" ]]
}
check 'programs ask for liblanemalloc.so.0' asks_for liblanemalloc.so.0 "$work/plain"
check 'it is installed under its version, with two links' test \
  -f "$library_folder/liblanemalloc.so.$version" -a -L "$library_folder/liblanemalloc.so.0" \
  -a -L "$library_folder/liblanemalloc.so"
check 'the library for dlopen has names like it' test \
  -f "$library_folder/liblanemalloc-dynamic-tls.so.$version" \
  -a -L "$library_folder/liblanemalloc-dynamic-tls.so.0" \
  -a -L "$library_folder/liblanemalloc-dynamic-tls.so"
gcc -O1 -D_GNU_SOURCE "$here/once.c" -I"$root/include" -o "$work/once" \
  "$root/build/release/liblanemalloc.so" -Wl,-rpath,"$root/build/release"
cp "$root/build/release/liblanemalloc.so" "$work/copied.so"
check 'linked: the library is mapped once' prints_ok "$work/once"
for path in "$root/build/release/liblanemalloc.so" "$library_folder/liblanemalloc.so" \
    "$work/copied.so"; do
  check "linked, and preloaded as ${path##*/}: the library is mapped once" prints_ok \
    env LD_PRELOAD="$path" "$work/once"
done
# The same copy under another name for the loader is a second library.
gcc -shared -o "$work/another.so" -Wl,-soname,another.so -Wl,--whole-archive \
  "$root/build/release/liblanemalloc.a" -Wl,--no-whole-archive \
  -Wl,--defsym=lanemalloc_is_library=malloc -pthread
if LD_PRELOAD=$work/another.so "$work/once" >"$work/log" 2>&1 ||
    ! grep -q '^2 libraries' "$work/log"; then
  echo "FAILED: two libraries are not noticed: $(tail -2 "$work/log")"
  failed=$((failed + 1))
else
  passed=$((passed + 1))
fi

# Headers of a later version: one field more in options and statistics.
cp -r "$root/include" "$work/later"
sed -i -E '/^struct lane_(heap|pool)_(options|statistics) \{/,/^\};/s/^\};/  uint64_t later;\n&/' \
  "$work"/later/lanemalloc/{heap,pool}.h
check 'a program of a later version' g++ -std=c++17 -I"$work/later" "$here/newer.cpp" \
  -o "$work/newer" "$root/build/release/liblanemalloc.so" -Wl,-rpath,"$root/build/release"
check 'a library serves a program of a later version' prints_ok "$work/newer"

# Hits of another layout: the slot has another name.
cp -r "$root/include" "$work/other"
sed -i 's/lane_thread_slot_of_layout_2"/lane_thread_slot_of_layout_0"/' \
  "$work/other/lanemalloc/hit.h"
check 'a program of another layout of the hits is not linked' fails_with \
  lane_thread_slot_of_layout_0 g++ -std=c++17 -I"$work/other" "$here/uses_fronts.cpp" \
  -o "$work/no" "$root/build/release/liblanemalloc.so"
# A library that had that name once, and has it no more.
gcc -shared -fPIC -x c - -o "$work/libonce.so" <<<'__thread void* lane_thread_slot_of_layout_0;'
check 'linked with a library of that layout' g++ -std=c++17 -I"$work/other" \
  "$here/uses_fronts.cpp" -o "$work/other_layout" "$root/build/release/liblanemalloc.so" -L"$work" \
  -lonce -Wl,-rpath,"$root/build/release:$work"
gcc -shared -fPIC -x c - -o "$work/libonce.so" <<<'int nothing;'
check 'a program of another layout of the hits does not start' fails_with \
  lane_thread_slot_of_layout_0 "$work/other_layout"
finish

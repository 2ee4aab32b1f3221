#!/usr/bin/env bash
# The libraries on musl, Alpine's C library: built by musl-gcc and run by musl's loader, linked,
# preloaded and in static programs. Debian's musl has no programs, so these are the tests' own:
# threads and forks, a foreign project's, and those of tests/semantics that ask for nothing of
# glibc's.
# Called by: run.sh, and by hand.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
"$root/tools/install-packages" musl-tools linux-libc-dev g++ cmake ninja-build python3 >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_PRELOAD LANEMALLOC_OPTIONS

build() {
  cmake -G Ninja -S "$root" -B "$root/build/musl" -DLANEMALLOC_TOOL=OFF -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_TOOLCHAIN_FILE="$root/cmake/musl-gcc.cmake" && cmake --build "$root/build/musl"
}
check 'musl: the libraries are built' build
[[ $failed -eq 0 ]] || finish
libraries=$root/build/musl
shared=$libraries/liblanemalloc.so
check 'musl: the library needs libc.so only' test \
  "$(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')" = libc.so

prints_ok() { [[ $("$@" 2>&1 | tee /dev/stderr) == ok ]]; }
linked=("$shared" "-Wl,-rpath,$libraries")
musl_gcc=(musl-gcc -std=gnu11 -O1 -g -fno-builtin -pthread -D_GNU_SOURCE -I"$root/include"
  -idirafter "$libraries/kernel" -Wno-free-nonheap-object -Wno-use-after-free
  -Wno-alloc-size-larger-than -fno-allocation-dce)
for name in projects/uses_malloc packages/threads; do
  source=$root/tests/$name.c name=${name#*/}
  check "musl: $name is built, linked" "${musl_gcc[@]}" "$source" -o "$work/$name" "${linked[@]}"
  check "musl: $name is built, static" "${musl_gcc[@]}" -static "$source" -o "$work/$name.static" \
    "$libraries/liblanemalloc.a"
  for lanes in owned shared:2 auto; do
    check "musl: $name, linked, lanes=$lanes" prints_ok env LANEMALLOC_OPTIONS="lanes=$lanes" \
      "$work/$name"
    check "musl: $name, static, lanes=$lanes" prints_ok env LANEMALLOC_OPTIONS="lanes=$lanes" \
      "$work/$name.static"
  done
done
check 'musl: threads is built without it' "${musl_gcc[@]}" "$root/tests/packages/threads.c" \
  -o "$work/plain"
counts() {
  env LD_PRELOAD="$shared" LANEMALLOC_OPTIONS=stats=exit "$work/plain" 2>&1 |
    grep '^lanemalloc: frees: [1-9]'
}
check 'musl: threads, preloaded' prints_ok env LD_PRELOAD="$shared" "$work/plain"
check 'musl: preloaded, it is the library that allocates' counts
percpu() {
  env LANEMALLOC_OPTIONS=lanes=percpu "$work/threads" 2>&1 | grep 'no restartable sequences here'
}
check 'musl: lanes=percpu says that musl registers no sequences' percpu

# Those left out ask for names of glibc's, or open libraries and look into them as glibc does.
fronts=(arena heaps heap_misuse pools pools_misuse safepoint_fronts struct_sizes)
for source in "$root"/tests/semantics/*.c "${fronts[@]/#/$root/tests/semantics/link/}"; do
  source=${source%.c}.c
  name=$(basename "$source" .c)
  case $name in control | symbols | dlopen_*) continue ;; esac
  if ! "${musl_gcc[@]}" -w -Dpvalloc=valloc "$source" -o "$work/$name" "${linked[@]}" -rdynamic \
      >"$work/log" 2>&1; then
    fail "musl: $name is built"
    head -n 20 "$work/log"
    continue
  fi
  while read -r case; do
    [[ $case != valloc_and_pvalloc_* ]] || continue  # musl has no pvalloc
    status=0
    CHECK_LIBRARY=$shared CHECK_PLUGINS=$work timeout -s KILL 300 "$work/$name" "$case" \
      >"$work/log" 2>&1 </dev/null || status=$?
    case $status in
      0) ok "musl: $name/$case" ;;
      77) skip "musl: $name/$case: $(sed -n 's/^skipped //p' "$work/log" | tail -1)" ;;
      *)
        fail "musl: $name/$case (status $status)"
        tail -n 5 "$work/log" | sed 's/^/    /'
        ;;
    esac
  done < <("$work/$name" --list 2>/dev/null)
done
finish

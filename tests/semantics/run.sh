#!/usr/bin/env bash
# Black-box tests of the drop-in library: builds the programs here and in tests/death and runs each
# case of each program in a process of its own, with the library preloaded (or opened, or linked,
# where the program is about that).
# Called by tests/run.sh and by hand; selftest.sh shows that the cases can fail.
# Usage: tests/semantics/run.sh [--lib PATH] [--only NAME] [--list] [--keep DIRECTORY]
#                               [--options OPTIONS]
#   --lib   the library (default build/release/liblanemalloc.so, built by make build if missing)
#   --only  cases whose program/case contains NAME
#   --keep  builds in DIRECTORY and leaves the programs there
#   --options  each case once, with these for LANEMALLOC_OPTIONS, rather than with every entry of
#              lanes
# The part's least has the default entry alone.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
library=$root/build/release/liblanemalloc.so
only=
list=
work=
options=
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
# shellcheck source=tests/semantics/cases.sh
source "$here/cases.sh"
while (($#)); do
  case $1 in
    --lib) library=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --list) list=1 && shift ;;
    --keep) work=$2 && mkdir -p "$2" && shift 2 ;;
    --options) options=$2 && shift 2 ;;
    *) echo "usage: $0 [--lib PATH] [--only NAME] [--list] [--keep DIRECTORY] [--options OPTIONS]" \
      >&2 && exit 2 ;;
  esac
done
[[ -e $library || $library != "$root"/build/release/* ]] || make -C "$root" build
[[ -e $library ]] || { echo "no library: $library" >&2 && exit 2; }
library=$(realpath "$library")
archive=${library%.so*}.a
prefixed=${library%.so*}_prefixed.a

if [[ -z $work ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
chmod 755 "$work" # link/secure.c runs a copy below it as nobody

cc=${CC:-gcc} cxx=${CXX:-g++}
# Calls of malloc and free must stay as written.
flags=(-O1 -g -Wall -Wextra -Werror -fno-builtin -pthread -D_GNU_SOURCE)
[[ $cc != gcc* ]] || flags+=(-Wno-free-nonheap-object -Wno-use-after-free
  -Wno-alloc-size-larger-than -fno-allocation-dce)
c_flags=(-std=gnu11 "${flags[@]}")
cxx_flags=(-std=c++17 "${flags[@]}")

# compile NAME SOURCE [ARGUMENT...]
compile() {
  local name=$1 source=$2 compiler=("$cc" "${c_flags[@]}")
  shift 2
  [[ $source != *.cc ]] || compiler=("$cxx" "${cxx_flags[@]}")
  build "$name" "${compiler[@]}" "$source" "$@"
}

wanted() { [[ -z $only || $1 == *"$only"* || $only == "$1"/* ]]; }
# A program is built if it, or one of its cases, is wanted.
mentions() {
  wanted "$1" || grep -q "CASE([A-Za-z0-9_]*${only##*/}" "${2/_cxx.cc/.c}" ||
    [[ ${only%%/*} == "$1" ]]
}

# program NAME MODE SOURCE [ARGUMENT...]
program() {
  local name=$1 mode=$2
  shift 2
  mentions "$name" "$1" || return 0
  programs+=("$name $mode")
  compile "$name" "$@"
}

skip_program() { ! wanted "$1" || skip "$1: $2"; }

for source in "$here"/*.c "$here"/*.cc "$root"/tests/death/*.c; do
  name=$(basename "${source%.c*}")
  case $name in
    dlopen_library) program "$name" plain "$source" ;;
    compiled_options) program "$name" preload "$source" -rdynamic ;;
    *) program "$name" preload "$source" ;;
  esac
done

linked=(arena heaps heap_misuse pools pools_misuse safepoint_fronts struct_sizes)
if [[ -e $archive || $(basename "$library") == liblanemalloc* ]]; then
  # shellcheck disable=SC2054 # the commas are for the linker
  whole=(-Wl,--whole-archive "$archive" -Wl,--no-whole-archive)
  program static_link_plain plain "$here/link/static_link.c" "$archive"
  program static_link_whole plain "$here/link/static_link.c" "${whole[@]}"
  program static_link_cxx plain "$here/link/static_link_cxx.cc" "$archive"
  program static_link_static plain "$here/link/static_link_cxx.cc" "$archive" -static
  program compiled_options_static plain "$here/compiled_options.c" "$archive"
  program secure plain "$here/link/secure.c" "$archive"
  header=()
  [[ ! -e $root/include/lanemalloc/lanemalloc.h ]] || header=(-DWITH_HEADER -I"$root/include")
  for name in "${linked[@]}"; do
    program "$name" plain "$here/link/$name.c" -I"$root/include" "$library" \
      -Wl,-rpath,"$(dirname "$library")"
    program "${name}_static" plain "$here/link/$name.c" -I"$root/include" "$archive"
    program "${name}_prefixed" plain "$here/link/$name.c" -I"$root/include" -DPREFIXED "$prefixed"
  done
  program prefixed_c11 plain "$here/link/prefixed.c" -std=c11 "${header[@]}" "$prefixed"
  program prefixed_cxx17 plain "$here/link/prefixed_cxx.cc" "${header[@]}" "$prefixed"
else
  skip_program static_link "no archive $(basename "$archive") beside the library"
  skip_program secure "no archive $(basename "$archive") beside the library"
  for name in "${linked[@]}"; do
    skip_program "$name" "no archive $(basename "$archive") beside the library"
  done
  skip_program prefixed "no archive $(basename "$prefixed") beside the library"
fi

# A public header alone, in both languages, with every warning an error.
check_header() {
  local file=$1 language=$2 standard=$3 name=header_$1_in_$3
  wanted "$name" || return 0
  if [[ ! -e $root/include/lanemalloc/$file ]]; then
    skip "$name: no include/lanemalloc/$file"
  elif echo "#include <lanemalloc/$file>" | "$cc" -x "$language" -std="$standard" -Wall -Wextra \
      -Wpedantic -Werror -I"$root/include" -fsyntax-only - 2>"$work/header.log"; then
    ok "$name"
  else
    cat "$work/header.log"
    fail "$name"
  fi
}

compile cxx_plugin.so "$here/plugins/cxx_plugin.cc" -shared -fPIC
for kind in a:512 b:64 c:8; do
  compile "tls_hungry_${kind%:*}.so" "$here/plugins/tls_hungry.c" -shared -fPIC \
    "-DTLS_BYTES=${kind#*:}"
done
wait
for kind in a b c; do
  for copy in {0..39}; do cp "$work/tls_hungry_$kind.so" "$work/tls_hungry_$kind$copy.so"; done
done

unset LANEMALLOC_OPTIONS LD_PRELOAD MALLOC_CONF
export CHECK_LIBRARY=$library CHECK_PLUGINS=$work

# What every case is run with.
entries=()
! runs least || entries+=("")
! runs rest || entries+=(lanes=shared:2 lanes=percpu)
[[ -z $options ]] || entries=("$options")

for entry in "${programs[@]}"; do
  read -r name mode <<<"$entry"
  cases_of "$name" || continue
  for case in $cases; do
    wanted "$name/$case" || continue
    [[ -z $list ]] || { echo "$name/$case" && continue; }
    for lanes in "${entries[@]}"; do start_case "$name" "$mode" "$case" "$lanes"; done
  done
done
[[ -z $list ]] || exit 0
count_cases
for header in "$root"/include/lanemalloc/*.h; do
  ! runs least || { check_header "${header##*/}" c c11 && check_header "${header##*/}" c++ c++17; }
done
finish

#!/usr/bin/env bash
# Black-box tests of the drop-in library: builds the programs here and in tests/death and runs each case of each
# program in a process of its own, with the library preloaded (or opened, or linked, where the program is about that).
# Called by tests/run.sh and by hand; selftest.sh shows that the cases can fail.
# Usage: tests/semantics/run.sh [--lib PATH] [--only NAME] [--list] [--keep DIRECTORY] [--options OPTIONS]
#   --lib   the library (default build/release/liblanemalloc.so, built by make build if missing)
#   --only  cases whose program/case contains NAME
#   --keep  builds in DIRECTORY and leaves the programs there
#   --options  each case once, with these for LANEMALLOC_OPTIONS, rather than with every entry of lanes
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
library=$root/build/release/liblanemalloc.so
only=
list=
work=
options=
while (($#)); do
  case $1 in
    --lib) library=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --list) list=1 && shift ;;
    --keep) work=$2 && mkdir -p "$2" && shift 2 ;;
    --options) options=$2 && shift 2 ;;
    *) echo "usage: $0 [--lib PATH] [--only NAME] [--list] [--keep DIRECTORY] [--options OPTIONS]" >&2 && exit 2 ;;
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
[[ $cc != gcc* ]] || flags+=(-Wno-free-nonheap-object -Wno-use-after-free -Wno-alloc-size-larger-than -fno-allocation-dce)
c_flags=(-std=gnu11 "${flags[@]}")
cxx_flags=(-std=c++17 "${flags[@]}")

passed=0 failed=0 skipped=0
programs=() # name, and how it runs: preload or plain

# build NAME SOURCE [ARGUMENT...]: builds in the background, two at a time.
build() {
  local name=$1 source=$2 compiler=("$cc" "${c_flags[@]}")
  shift 2
  [[ $source != *.cc ]] || compiler=("$cxx" "${cxx_flags[@]}")
  while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done
  "${compiler[@]}" -o "$work/$name" "$source" "$@" 2>"$work/$name.log" &
}

wanted() { [[ -z $only || $1 == *"$only"* || $only == "$1"/* ]]; }
# A program is built if it, or one of its cases, is wanted.
mentions() { wanted "$1" || grep -q "CASE([A-Za-z0-9_]*${only##*/}" "${2/_cxx.cc/.c}" || [[ ${only%%/*} == "$1" ]]; }

# program NAME MODE SOURCE [ARGUMENT...]
program() {
  local name=$1 mode=$2
  shift 2
  mentions "$name" "$1" || return 0
  programs+=("$name $mode")
  build "$name" "$@"
}

skip() {
  wanted "$1" || return 0
  echo "skipped $1: $2"
  skipped=$((skipped + 1))
}

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
    program "$name" plain "$here/link/$name.c" -I"$root/include" "$library" -Wl,-rpath,"$(dirname "$library")"
    program "${name}_static" plain "$here/link/$name.c" -I"$root/include" "$archive"
    program "${name}_prefixed" plain "$here/link/$name.c" -I"$root/include" -DPREFIXED "$prefixed"
  done
  program prefixed_c11 plain "$here/link/prefixed.c" -std=c11 "${header[@]}" "$prefixed"
  program prefixed_cxx17 plain "$here/link/prefixed_cxx.cc" "${header[@]}" "$prefixed"
else
  skip static_link "no archive $(basename "$archive") beside the library"
  skip secure "no archive $(basename "$archive") beside the library"
  for name in "${linked[@]}"; do skip "$name" "no archive $(basename "$archive") beside the library"; done
  skip prefixed "no archive $(basename "$prefixed") beside the library"
fi

# A public header alone, in both languages, with every warning an error.
check_header() {
  local file=$1 language=$2 standard=$3 name=header_$1_in_$3
  wanted "$name" || return 0
  if [[ ! -e $root/include/lanemalloc/$file ]]; then
    skip "$name" "no include/lanemalloc/$file"
  elif echo "#include <lanemalloc/$file>" | "$cc" -x "$language" -std="$standard" -Wall -Wextra -Wpedantic -Werror \
    -I"$root/include" -fsyntax-only - 2>"$work/header.log"; then
    echo "ok $name" && passed=$((passed + 1))
  else
    cat "$work/header.log" && echo "FAILED $name" && failed=$((failed + 1))
  fi
}

build cxx_plugin.so "$here/plugins/cxx_plugin.cc" -shared -fPIC
for kind in a:512 b:64 c:8; do
  build "tls_hungry_${kind%:*}.so" "$here/plugins/tls_hungry.c" -shared -fPIC "-DTLS_BYTES=${kind#*:}"
done
wait
for kind in a b c; do
  for copy in {0..39}; do cp "$work/tls_hungry_$kind.so" "$work/tls_hungry_$kind$copy.so"; done
done

unset LANEMALLOC_OPTIONS LD_PRELOAD MALLOC_CONF
export CHECK_LIBRARY=$library CHECK_PLUGINS=$work

# The entries of lanes that every case is run with; "" is the default.
entries=("" shared:2 percpu)
[[ -z $options ]] || entries=("")

# run_case NAME MODE CASE LANES: one line, ok, FAILED or skipped, is the last that the case prints; here it gets the name.
run_case() {
  local name=$1 mode=$2 case=$3 status=0 preload=() label=${4:+ [$4]}
  wanted "$name/$case" || return 0
  [[ -z $list ]] || { echo "$name/$case" && return 0; }
  [[ -z $4 ]] || preload=("LANEMALLOC_OPTIONS=lanes=$4")
  [[ -z $options ]] || preload=("LANEMALLOC_OPTIONS=$options")
  [[ $mode == plain ]] || preload+=("LD_PRELOAD=$library")
  [[ -z ${CHECK_TIMES:-} ]] || echo "$(date +%s.%N) $name/$case" >>"$CHECK_TIMES"
  # The shell's own word about a signal goes to nobody.
  { timeout -s KILL 300 env "${preload[@]}" "$work/$name" "$case" >"$work/out" 2>&1 </dev/null || status=$?; } 2>/dev/null
  case $status in
    0) echo "ok $name/$case$label" && passed=$((passed + 1)) ;;
    77) echo "skipped $name/$case$label: $(sed -n 's/^skipped //p' "$work/out" | tail -1)" && skipped=$((skipped + 1)) ;;
    *)
      head -c 8000 "$work/out" | grep -av "^FAILED $case$" || true
      echo "FAILED $name/$case$label (status $status)" && failed=$((failed + 1))
      ;;
  esac
}

for entry in "${programs[@]}"; do
  read -r name mode <<<"$entry"
  if ! cases=$([[ -x $work/$name ]] && "$work/$name" --list 2>/dev/null); then
    head -40 "$work/$name.log"
    echo "FAILED $name (does not build)" && failed=$((failed + 1))
    continue
  fi
  for case in $cases; do
    run_case "$name" "$mode" "$case" ""
    [[ -n $list ]] || for lanes in "${entries[@]:1}"; do run_case "$name" "$mode" "$case" "$lanes"; done
  done
done
for header in "$root"/include/lanemalloc/*.h; do
  [[ -n $list ]] || { check_header "${header##*/}" c c11 && check_header "${header##*/}" c++ c++17; }
done

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))

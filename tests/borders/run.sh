#!/usr/bin/env bash
# What the process does at its borders: threads and processes that end, fork, other users and name
# spaces, limits, system calls that are refused. Builds each program here and runs each of its cases
# in a process of its own, once for each entry of lanes; the part's least has the default entry
# alone.
# A case passes under the C library too, unless its name begins with lanemalloc_: it asks for more.
# Called by tests/run.sh and by hand. The cases' harness is that of tests/semantics (check.h,
# child.h).
# Usage: tests/borders/run.sh [--lib PATH|glibc] [--only PROGRAM[/CASE]] [--list]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
library=$root/build/release/liblanemalloc.so
only=
list=
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
# shellcheck source=tests/semantics/cases.sh
source "$root/tests/semantics/cases.sh"
while (($#)); do
  case $1 in
    --lib) library=$2 && shift 2 ;;
    --only) only=$2 && shift 2 ;;
    --list) list=1 && shift ;;
    *) echo "usage: $0 [--lib PATH|glibc] [--only PROGRAM[/CASE]] [--list]" >&2 && exit 2 ;;
  esac
done
entries=()
! runs least || entries+=("")
! runs rest || entries+=(lanes=percpu lanes=shared:2 checked=1)

"$root/tools/install-packages" gcc libc6-dev
"$root/tools/install-packages" gdb || true # without it a case is skipped
[[ -e $library || $library != "$root"/build/release/* ]] || make -C "$root" build
[[ $library == glibc ]] || library=$(realpath -e "$library")
archive=${library%.so*}.a

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # some cases go on as nobody
unset LANEMALLOC_OPTIONS LD_PRELOAD MALLOC_CONF
export CHECK_LIBRARY=$library CHECK_WORK=$work

flags=(-std=gnu11 -O1 -g -Wall -Wextra -Werror -Wno-use-after-free -fno-builtin -fno-allocation-dce
  -pthread -D_GNU_SOURCE
  -I"$root/tests/semantics" -I"$root/include" -I"$work")
# The rows of docs/system-calls.md, for refused.c and asked.c: the names in a row's first cell, and
# those values of an argument that are refused by themselves.
awk -F'|' '
  /^\| `/ {
    when = $3
    gsub(/ /, "", when)
    count = split($2, part, "`")
    for (i = 2; i <= count; i += 2) {
      if (part[i] ~ /^[a-z][a-z0-9_]*$/) {
        name = part[i]
        line = when == "start" || when == "later" ? "NEEDED(" name ", " when ")" : "CALL(" name ")"
      } else if (part[i] ~ /^(FUTEX|MEMBARRIER|MADV|PROT)_/) {
        line = "WITH(" name ", " part[i] ")"
      } else {
        continue
      }
      if (!seen[line]++) print "#ifdef SYS_" name "\n" line "\n#endif"
    }
  }' "$root/docs/system-calls.md" >"$work/system_calls.h"

# program NAME MODE SOURCE [ARGUMENT...]
program() {
  local name=$1 mode=$2
  shift 2
  [[ -z $only || ${only%%/*} == "$name" ]] || return 0
  programs+=("$name $mode")
  build "$name" "${CC:-gcc}" "${flags[@]}" "$@"
}

for source in "$here"/*.c; do
  name=$(basename "${source%.c}")
  # What a library beside ours does is a library of its own.
  [[ $name != *_plugin ]] || continue
  arguments=()
  if [[ -e $here/${name}_plugin.c ]]; then
    "${CC:-gcc}" "${flags[@]}" -shared -fPIC -o "$work/lib${name}_plugin.so" \
      "$here/${name}_plugin.c"
    arguments=("$work/lib${name}_plugin.so" "-Wl,-rpath,$work")
  fi
  # Its cases call lane_*, which no other library has.
  if grep -q '^// Linked with the library\.' "$source"; then
    [[ $library != glibc ]] || continue
    program "$name" plain "$source" "${arguments[@]}" "$library" "-Wl,-rpath,${library%/*}"
    [[ ! -e $archive ]] || ! grep -q '^// Also linked with the static library\.' "$source" ||
      program "${name}_static" plain "$source" "${arguments[@]}" "$archive"
    continue
  fi
  program "$name" preload "$source" "${arguments[@]}"
  [[ ! -e $archive ]] || ! grep -q '^// Also linked with the static library\.' "$source" ||
    program "${name}_static" plain "$source" "${arguments[@]}" "$archive"
done
wait

for entry in "${programs[@]}"; do
  read -r name mode <<<"$entry"
  cases_of "$name" || continue
  for case in $cases; do
    [[ $only != */* || $case == "${only#*/}"* ]] || continue
    [[ -z $list ]] || { echo "$name/$case" && continue; }
    if [[ $library == glibc ]]; then
      [[ $case == lanemalloc_* ]] || start_case "$name" "$mode" "$case" ""
    else
      for options in "${entries[@]}"; do start_case "$name" "$mode" "$case" "$options"; done
    fi
  done
done
[[ -z $list ]] || exit 0
count_cases
finish

#!/usr/bin/env bash
# The figures and facts that must not drift: the fast path's instructions, the shared library's
# shape, its start.
#   tests/golden/run.sh [--update] [LIBRARY]      LIBRARY: build/release/liblanemalloc.so unless
#   given
# Called by: tests/run.sh golden. Its parts:
#   fast path      no locked operation, fence or call in malloc, free, new, delete; counts as in
#                  fast_path.txt
#   binary         libc only, its name for the loader, exports as in exports.txt, no text
#                  relocations, static TLS
#   instructions   of a malloc+free pair, by each entry of a lane, and of the workloads: within
#                  their bars, and as in figures.tsv, neither worse nor better (figures.py)
#   arenas         instructions of an allocation, locked operations of a reset (arena.py)
#   heaps          against our own malloc, where all objects go at once or are freed with their
#                  sizes; as in heaps.tsv (heaps.py)
#   deferred frees their instructions and shared operations, against plain frees (safepoints.py)
#   pools          instructions of pools' and heaps' pairs: against malloc's, and as in pools.tsv
#                  (pools.py)
#   abi            what compiled programs know of functions, structs and constants: as in abi.txt
#                  (abi.py)
#   hit layout     what hits in programs know of a lane, under the same number as in hit_layout.txt
#   start          a small program is at most 1 MiB larger than with the C library
#   self-test      each of these checks catches a library with the fault that it is there for
#                  (mutant.c)
# The least: the first two, the hit layout, the start, and the instructions of some pairs.
# --update writes fast_path.txt, exports.txt, abi.txt, figures.tsv, heaps.tsv and pools.tsv from
# LIBRARY; look at the difference before you commit it.
set -euo pipefail
# shellcheck source=bench/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../bench/lib.sh"

here=$root/tests/golden
library=$root/build/release/liblanemalloc.so
update=()
for argument in "$@"; do
  case $argument in
    --update) update=(--update) ;;
    -*) warn "usage: tests/golden/run.sh [--update] [LIBRARY]"; exit 2 ;;
    *) library=$(realpath "$argument") ;;
  esac
done

need_packages binutils valgrind gcc g++ libc6-dev python3
need_python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"

# part TITLE COMMAND...: shows the command's lines and adds its closing line up.
part() {
  say "== golden: $1"
  add_up "${@:2}"
}

# judge GOOD WHAT [LOG]: one verdict of the self-test.
judge() {
  if [[ $1 == yes ]]; then ok "$2"; return; fi
  fail "$2"
  [[ ! -e ${3:-} ]] || sed 's/^/    /' "$3"
}

# toy NAME FLAG...: builds the toy allocator with a fault.
toy() {
  local name=$1
  shift
  cc -O2 -g -std=gnu11 -fPIC -shared -fvisibility=hidden -fno-builtin -fno-stack-protector \
    -fcf-protection=none -ftls-model=initial-exec -Wl,-soname,liblanemalloc.so.0 \
    -o "$work/$name.so" "$here/mutant.c" "$@"
}

# catches NAME WHY COMMAND...: the check must fail, and for the reason that a FAIL line matching WHY
# gives.
catches() {
  local name=$1 why=$2 log=$work/catch.log good=no
  shift 2
  "$@" >"$log" 2>&1 || ! grep -qE "^FAIL: .*$why" "$log" || good=yes
  judge "$good" "the check catches $name" "$log"
}

# One instruction more, and one less, than the golden figure; tables that do not fit.
figures_self_test() {
  local figures=("$python" "$here/figures.py" --only pair32 --only bulk-order --table) \
    log=$work/toy.log good=no
  toy MORE -DMUTANT_MORE
  "${figures[@]}" "$work/whole.tsv" --update "$work/whole.so" >"$log"
  "${figures[@]}" "$work/more.tsv" --update "$work/MORE.so" >>"$log"
  if "${figures[@]}" "$work/whole.tsv" "$work/whole.so" >>"$log" 2>&1; then good=yes; fi
  judge "$good" "a library passes by its own figures" "$log"
  catches "an instruction more in malloc" 'bulk-order: .* WORSE' "${figures[@]}" "$work/whole.tsv" \
    "$work/MORE.so"
  catches "an instruction less that the table does not know of" 'pair32: .* better; keep it' \
    "${figures[@]}" "$work/more.tsv" "$work/whole.so"
  sed -i /pair32/d "$work/more.tsv"
  catches "a figure that the table lacks" 'pair32: .* not in more.tsv' "${figures[@]}" \
    "$work/more.tsv" "$work/MORE.so"
  sed -i '1s/GCC/another compiler/' "$work/whole.tsv"
  good=no
  if "${figures[@]}" "$work/whole.tsv" "$work/MORE.so" >"$log" 2>&1 &&
      grep -q '^0 passed, 0 failed, 2 skipped$' "$log"; then
    good=yes
  fi
  judge "$good" "another compiler's figures judge nothing" "$log"
}

# abi_change WHAT FILE EXPRESSION [PATTERN]: sed changes a header; the check says that programs
# break, or what PATTERN says.
abi_change() {
  rm -rf "$work/changed"
  cp -r "$root/include" "$work/changed"
  sed -i -E "$3" "$work/changed/lanemalloc/$2"
  if cmp -s "$root/include/lanemalloc/$2" "$work/changed/lanemalloc/$2"; then
    judge no "$1: the header is as it was"
  else
    catches "$1" "${4:-programs that were compiled before}" "$python" "$here/abi.py" \
      --include "$work/changed"
  fi
}

abi_self_test() {
  abi_change "a field that moved" pool.h \
    '/^  size_t object_size;/ { h; d }; /^  size_t alignment;/ { G }'
  abi_change "a field of another type" pool.h 's/^  size_t limit; /  uint64_t limit; /'
  abi_change "a field that has gone" heap.h '/uint64_t peak_bytes;/d'
  abi_change "a longer struct whose size no program tells" arena.h \
    's/^  size_t large_made; .*large pieces so far.*/&\n  size_t more;/'
  abi_change "a field in a gap" pool.h 's/^  enum lane_padding padding;/&\n  int more;/'
  abi_change "another parameter" heap.h 's/^(int lane_heap_set_limits)\(/\1(int kind, /'
  abi_change "another value" pool.h 's/LANE_POOL_WAIT = 2/LANE_POOL_WAIT = 8/'
  abi_change "a function that has gone" arena.h \
    's/^char\* lane_arena_strdup\(/char* lane_arena_copy(/' 'the headers declare what is exported'
  abi_change "a field at the end that the table lacks" pool.h \
    's/^  void\* source;.*/&\n  size_t more;/' 'as in abi.txt'
  local log=$work/toy.log good=no
  if ! grep -q BREAKS "$work/catch.log"; then good=yes; fi
  judge "$good" "a field at the end of options breaks nothing" "$work/catch.log"
  # --update writes what breaks nothing, and no more.
  cp "$here/abi.txt" "$work/abi.txt"
  good=no
  if "$python" "$here/abi.py" --include "$work/changed" --table "$work/abi.txt" --update \
    >"$log" 2>&1 &&
    grep -q '^lane_pool_options.more	112 ' "$work/abi.txt"; then good=yes; fi
  judge "$good" "--update takes a field at the end" "$log"
  good=no
  if ! "$python" "$here/abi.py" --table "$work/abi.txt" --update >"$log" 2>&1 &&
    grep -q '^lane_pool_options.more' "$work/abi.txt"; then good=yes; fi
  judge "$good" "--update does not take a field away" "$log"
}

self_test() {
  say "== golden: self-test"
  local fast=("$python" "$here/fast_path.py" --no-golden) binary=("$python" "$here/binary.py"
    --exports "$work/exports")
  local log=$work/toy.log good=no fault
  toy whole
  nm -D --defined-only "$work/whole.so" | awk '{print $3}' >"$work/exports"
  if "${fast[@]}" "$work/whole.so" >"$log" 2>&1 &&
      "${binary[@]}" "$work/whole.so" >>"$log" 2>&1; then
    good=yes
  fi
  judge "$good" "a sound toy allocator passes" "$log"

  for fault in LOCK XCHG FENCE CALL TAIL; do toy "$fault" "-DMUTANT_$fault"; done
  for fault in LOCK XCHG FENCE; do
    catches "a planted $fault in malloc's body" 'malloc: no locked' "${fast[@]}" --only static \
      "$work/$fault.so"
    catches "a planted $fault on the executed path" 'pair32: no locked' "${fast[@]}" \
      --only executed "$work/$fault.so"
  done
  catches "a call in malloc's body" 'malloc: no call' "${fast[@]}" --only static "$work/CALL.so"
  catches "a locked operation moved out of line" 'pair32: no locked' "${fast[@]}" --only executed \
    "$work/TAIL.so"

  toy needs -Wl,--no-as-needed -lm
  catches "a library that needs more than libc" 'needs the C library only' "${binary[@]}" \
    "$work/needs.so"
  toy soname -Wl,-soname,liblanemalloc.so
  catches "another name for the loader" 'its name for the loader is' "${binary[@]}" \
    "$work/soname.so"
  toy exports -DMUTANT_EXPORT
  catches "a missing export" 'exports what' "${binary[@]}" "$work/exports.so"
  toy tls -ftls-model=global-dynamic
  catches "thread-local words that are not in static TLS" 'thread-local words' "${binary[@]}" \
    "$work/tls.so"
  if [[ $(uname -m) == x86_64 ]]; then
    toy textrel -DMUTANT_TEXTREL -Wl,-z,notext 2>/dev/null
    catches "a text relocation" 'no relocations in the text' "${binary[@]}" "$work/textrel.so"
  fi
  if command -v valgrind >/dev/null; then
    catches "too many instructions (the C library's malloc)" 'libc pair32' \
      "$python" "$root/bench/micro/run.py" --check --lib libc --workload pair32
  fi
  if command -v valgrind >/dev/null; then
    catches "a locked operation by an entry" 'lanes=owned, after a thread: at most 0 locked' \
      "$python" "$here/entries.py" "$work/LOCK.so"
    figures_self_test
    [[ ! -e $library ]] || catches "deferred frees in batches of one" 'shared operations' \
      "$python" "$here/safepoints.py" --options deferred=16 "$library"
    [[ ! -e $library ]] || catches "heaps whose allocations are no hits" \
      'destroyed, 10000 objects of 48: .* at most' "$python" "$here/heaps.py" --options checked=1 \
      --only '10000 objects of 48' "$library"
    [[ ! -e $library ]] || catches "a pool whose pair goes out of line" \
      'limited, one: .* at most 0.8' "$python" "$here/pools.py" --pool limited "$library"
  fi
  cp -r "$root/include" "$work/include"
  sed -i 's/  136 /  144 /' "$work/include/lanemalloc/hit.h"
  catches "another layout of hits under the same number" \
    'LANE_GATE_AREA 144 under the same number' "$python" "$here/hit_layout.py" \
    --include "$work/include"
  sed -i 's/define LANE_HIT_LAYOUT 2/define LANE_HIT_LAYOUT 3/' "$work/include/lanemalloc/hit.h"
  catches "another number of the layout, and the old symbol" \
    'the symbol of the slot has another number' "$python" "$here/hit_layout.py" \
    --include "$work/include"
  abi_self_test
  # A library whose start dirties 2 MiB.
  {
    echo 'static char dirt[2 << 20]; __attribute__((constructor)) static void start(void)
      { for (unsigned i = 0; i < sizeof dirt; i += 4096) ((volatile char*)dirt)[i] = 1; }'
    cat "$here/mutant.c"
  } >"$work/fat.c"
  cc -O2 -std=gnu11 -fPIC -shared -fvisibility=hidden -fno-builtin -o "$work/fat.so" "$work/fat.c"
  catches "a start that costs 2 MiB" 'a small program is' "$python" "$root/bench/startup/run.py" \
    --check-rss --lib "$work/fat.so"
}

if [[ ! -e $library ]]; then
  fail "no library at ${library#"$root/"}: run make build first"
  finish
fi
if runs least; then
  part "fast path" "$python" "$here/fast_path.py" "${update[@]}" "$library"
  part "binary" "$python" "$here/binary.py" "${update[@]}" "$library"
  part "abi" "$python" "$here/abi.py" "${update[@]}"
  part "hit layout" "$python" "$here/hit_layout.py" "${update[@]}"
  part "start" "$python" "$root/bench/startup/run.py" --check-rss --lib "lanemalloc=$library"
fi
if runs rest; then
  part "instructions" "$python" "$here/figures.py" "${update[@]}" "$library"
  part "arenas" "$python" "$here/arena.py" "$library"
  part "heaps" "$python" "$here/heaps.py" "${update[@]}" "$library"
  part "deferred frees" "$python" "$here/safepoints.py" "$library"
  part "pools" "$python" "$here/pools.py" "${update[@]}" "$library"
  self_test
else
  part "instructions of pairs" "$python" "$here/figures.py" --only pair32 --only bulk-shuffle \
    --only 'lanes=shared:2, after a thread' --only 'lanes=percpu, after a thread' "$library"
fi
finish

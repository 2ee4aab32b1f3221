#!/usr/bin/env bash
# Builds for aarch64 with Debian's cross compiler and runs under qemu-user: the unit tests (preset
# aarch64, with development checks; `make verify` runs them with 64 KiB pages too), and the stress
# programs with 4 and with 64 KiB pages, at a small scale, under the library that ships. It shows
# that the aarch64 code works; an x86-64 machine that emulates one does not show weak ordering.
# Called by: tests/run.sh, and by hand. A case that qemu-user cannot run is skipped and says why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly kBuild=$PWD/build/aarch64
# The least: the library, a program, and the cases of vfork, with pages of 4 KiB.
# shellcheck source=tests/part.sh
source tests/part.sh
programs=(storm)
! runs rest || programs+=(thread_exit many_threads fork_load signals single_step)
# Of the unit tests: qemu keeps what it noted of every address that was ever mapped.
readonly kShards=12
readonly kPatience=300  # seconds; no bound on speed
# For the same reason. The largest fake machine of the unit tests takes 60 GiB of addresses.
readonly kAddressSpaceKiB=100000000
kCaseScale=$(awk -v scale="${LANEMALLOC_TEST_SCALE:-1}" 'BEGIN { print scale * 0.02 }')
readonly kCaseScale
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

emulate() {
  (ulimit -c 0 -v "$kAddressSpaceKiB" && exec timeout -k 5 "$kPatience" qemu-aarch64-static "$@")
}

build_unit_tests() {
  local googletest=$kBuild/googletest
  tools/install-packages googletest
  if [[ ! -e $googletest/installed/lib/libgtest.a ]]; then
    cmake -S /usr/src/googletest -B "$googletest" -G Ninja \
      -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" -DCMAKE_BUILD_TYPE=Release \
      -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_PREFIX="$googletest/installed"
    cmake --build "$googletest" --parallel "$(nproc)" --target install
  fi
  tools/build aarch64 unit_tests
}

build_all() {
  local program
  tools/install-packages g++-aarch64-linux-gnu qemu-user-static cmake ninja-build
  if runs rest; then
    build_unit_tests
    build_wrong_vfork
  fi
  cmake --preset release -B "$kBuild/release" --toolchain cmake/aarch64.cmake
  cmake --build "$kBuild/release" --parallel "$(nproc)" --target lanemalloc
  for program in "${programs[@]}"; do
    aarch64-linux-gnu-g++ -std=c++20 -g -O2 -Wall -Wextra -fno-exceptions -fno-rtti -pthread \
      "tests/stress/$program.cpp" -o "$work/$program" -Wl,-z,now
  done
  aarch64-linux-gnu-gcc -O1 -Wall -Wextra -pthread tests/machines/cpu_facts.c -o "$work/cpu_facts"
  aarch64-linux-gnu-gcc -std=gnu11 -O1 -g -Wall -Wno-use-after-free -fno-builtin \
    -fno-allocation-dce -pthread -D_GNU_SOURCE -Itests/semantics -Iinclude tests/borders/vfork.c \
    -o "$work/vfork"
}

# The library with a mistake that only aarch64 can make: after vfork the parent's slot gets back
# what a register happens to hold.
build_wrong_vfork() {
  cp -r src "$work/src"
  sed -i '/mov x9, x0/d' "$work/src/core/base/arch_aarch64.h"
  if cmp -s src/core/base/arch_aarch64.h "$work/src/core/base/arch_aarch64.h"; then
    echo 'arch_aarch64.h has no such instruction any more' >&2
    return 1
  fi
  local sources
  mapfile -t sources < <(find "$work/src" -name '*.cpp')
  aarch64-linux-gnu-g++ -std=gnu++20 -O2 -fPIC -shared -pthread -DNDEBUG -D_GNU_SOURCE \
    -DLANEMALLOC_VERSION='"0"' -fno-builtin -fno-exceptions -fno-rtti -fvisibility=hidden \
    -fno-threadsafe-statics -ftls-model=initial-exec "-I$work/src" -Iinclude \
    "${sources[@]}" -o "$work/wrong_vfork.so"
}

show_facts() {
  local bytes=$1
  emulate -p "$bytes" "$work/cpu_facts" 2 >"$work/facts"
  grep -v '^thread' "$work/facts" | sed "s/^/  /"
  if grep -qx "page_size $bytes" "$work/facts"; then
    ok "the emulated machine has pages of $bytes bytes"
  else
    fail "the emulated machine should have pages of $bytes bytes"
  fi
  grep -qx 'rseq yes' "$work/facts" ||
    skip "rseq with pages of $bytes bytes: qemu-user does not offer it;" \
      "lanes=percpu runs its fallback"
  grep -qx 'membarrier yes' "$work/facts" ||
    skip "revocation with pages of $bytes bytes: qemu-user does not forward membarrier here"
}

# Where the fake platform's pages are the machine's own. What the other sizes test does not depend
# on the machine, nor do threads that are torn off at each instruction: they are by one entry here.
run_unit_tests() {
  local bytes=$1 name=$2 other=$3 shard filter wanted ran bad
  filter="-*/16K*:*/$other*:*TornTest*/*KS*:*TornTest*/*KPerCpu"
  wanted=$(emulate "$kBuild/unit_tests" --gtest_list_tests --gtest_filter="$filter" |
    grep -c '^  ' || true)
  export -f emulate
  export kAddressSpaceKiB kPatience kBuild kShards work filter bytes
  # shellcheck disable=SC2016  # for the inner shell
  seq 0 $((kShards - 1)) | xargs -P "$(nproc)" -I{} bash -c '
    GTEST_TOTAL_SHARDS=$kShards GTEST_SHARD_INDEX={} emulate -p "$bytes" "$kBuild/unit_tests" \
      --gtest_color=no --gtest_filter="$filter" >"$work/unit.{}" 2>&1 ||
      echo "ended with status $?" >>"$work/unit.{}"'
  ran=$(cat "$work"/unit.* | grep -cE '^\[ +OK \] .* \([0-9]+ ms\)$' || true)
  bad=$(cat "$work"/unit.* | grep -cE '^(\[ +FAILED +\] .* \([0-9]+ ms\)|ended with status .*)$' ||
    true)
  passed=$((passed + ran))
  for ((shard = 0; shard < kShards; shard++)); do
    if grep -qE '^(\[ +FAILED|ended with)' "$work/unit.$shard"; then
      tail -n 40 "$work/unit.$shard" | sed 's/^/  | /'
    fi
  done
  rm -f "$work"/unit.*
  if [[ $bad -gt 0 || $ran -eq 0 || $ran -ne $wanted ]]; then
    fail "unit tests with $name pages: $ran of $wanted passed"
  else
    echo "ok unit tests with $name pages: $ran"
  fi
}

# Threads of PROGRAM that wait for a lock in qemu's own data, each with the lock's address; of
# processes that do nothing else, where nobody is left to give it back.
waiting_in_qemu() {
  local process task call address word rest
  for process in $(pgrep -f -- "$1"); do
    # A system call's number, or "running".
    ! grep -qsv '^202 ' "/proc/$process/task/"*/syscall || continue
    for task in "/proc/$process/task/"*; do
      # The number and arguments: 202 is futex, 0x80 with 0x2 glibc's wait for a lock that is taken.
      read -r call address word rest 2>/dev/null <"$task/syscall" || continue
      [[ $call == 202 && "$word $rest" == '0x80 0x2 '* ]] || continue
      awk -v address="${address#0x}" '
        function whole(text) { return substr("0000000000000000" text, length(text) + 1) }
        {
          split($1, range, "-")
          ours = /qemu-aarch64-static/ || (NF == 5 && range[1] == end)
          if (!ours) next
          end = range[2]
          if (whole(range[1]) <= whole(address) && whole(address) < whole(range[2])) found = 1
        }
        END { exit !found }' "/proc/$process/maps" 2>/dev/null && echo "$task $address"
    done
  done
}

# qemu-user takes a lock to start a thread and forgets it at fork: a child that was forked while
# another thread was being started can never start one, whichever allocator it has. Ends such a
# program, and says so in $work/stuck.
end_if_stuck_in_qemu() {  # PROGRAM
  local before='' now
  while sleep 10; do
    now=$(waiting_in_qemu "$1" || true)
    if comm -12 <(sort <<<"$before") <(sort <<<"$now") | grep -q .; then
      echo "$now" >"$work/stuck"
      pkill -9 -f -- "$1"
      return
    fi
    before=$now
  done
}

run_case() {  # LIBRARY|"" PAGE_BYTES OPTIONS PROGRAM CASE; its output is in $work/output
  local preload=() checked=0 status watcher try
  # By -E: the emulator itself must not load it.
  [[ -z $1 ]] || preload=(-E "LD_PRELOAD=$1")
  [[ $3 != *checked=1* ]] || checked=1
  for ((try = 0; try < 5; try++)); do
    rm -f "$work/stuck"
    end_if_stuck_in_qemu "$work/$4" >/dev/null 2>&1 &
    watcher=$!
    status=0
    LANEMALLOC_TEST_SCALE=$kCaseScale LANEMALLOC_TEST_WATCHDOG=$((kPatience - 30)) \
      LANEMALLOC_OPTIONS=$3 LANEMALLOC_TEST_LIBRARY=$1 LANEMALLOC_TEST_CHECKED=$checked \
      emulate -p "$2" "${preload[@]}" "$work/$4" "$5" >"$work/output" 2>&1 </dev/null || status=$?
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    [[ -e $work/stuck ]] || return "$status"
    echo "  again: $4 $5 was stuck in qemu's own lock"
  done
  return "$status"
}

# Why a case that failed says nothing of the library; empty if it does.
excuse() {  # PAGE_BYTES PROGRAM CASE
  if [[ $2/$3 == @(many_threads/cost|fork_load/spawn) && $can_execute == no ]]; then
    echo 'qemu-user starts no other program unless the kernel knows aarch64 programs (binfmt_misc)'
    return
  fi
  local text
  for text in 'memory grows with dead threads' 'the second generation takes'; do
    grep -q "^FAILED.*$text" "$work/first-output" || continue
    if ! run_case '' "$1" '' "$2" "$3" && grep -q "^FAILED.*$text" "$work/output"; then
      echo "what qemu-user has for each thread grows as much with glibc's malloc;" \
        "all else in it held"
    fi
  done
}

run_stress() {  # PAGE_BYTES OPTIONS PROGRAM...
  local bytes=$1 options=$2 program name label why status
  shift 2
  label="[$((bytes / 1024)) KiB pages${options:+, $options}]"
  for program in "$@"; do
    for name in $(emulate "$work/$program" list); do
      status=0
      run_case "$kBuild/release/liblanemalloc.so" "$bytes" "$options" "$program" "$name" ||
        status=$?
      if [[ $status -eq 0 ]] && grep -q '^skipped' "$work/output"; then
        skip "$label $(sed -n 's/^skipped //p' "$work/output")"
      elif [[ $status -eq 0 ]] && grep -q '^ok' "$work/output"; then
        ok "$label $(sed -n 's/^ok //p' "$work/output")"
      else
        cp "$work/output" "$work/first-output"
        why=$(excuse "$bytes" "$program" "$name")
        if [[ -n $why ]]; then
          skip "$label $program $name: $why"
        else
          fail "$label $program $name: status $status"
          head -n 40 "$work/first-output" | sed 's/^/  | /'
        fi
      fi
    done
  done
}

# The cases that qemu-user can run, which has a child by vfork, or by a clone whose parent is
# stopped, be one by fork.
run_vfork() {
  local name status
  for name in a_child_by_vfork_allocates_and_frees a_child_by_vfork_on_another_cpu \
      an_exec_that_fails_and_one_that_does_not a_child_by_clone_whose_parent_is_stopped \
      a_child_by_clone_with_memory_of_its_own signals_in_parent_and_child vfork_that_is_refused; do
    status=0
    run_case "$kBuild/release/liblanemalloc.so" 4096 '' vfork "$name" || status=$?
    if [[ $status -eq 0 ]]; then
      ok "vfork $name"
    else
      fail "vfork $name: status $status"
      head -n 40 "$work/output" | sed 's/^/  | /'
    fi
  done
}

# The case must pass with another allocator and fail with the mistake.
expect_failure() {  # MUTANT PROGRAM CASE OPTIONS
  if ! run_case '' 4096 '' "$2" "$3"; then
    fail "$2 $3 should pass with glibc's malloc: $(head -n 1 "$work/output")"
  elif run_case "$work/$1.so" 4096 "$4" "$2" "$3"; then
    fail "mutant $1 should fail $2 $3: $(head -n 1 "$work/output")"
  else
    ok "mutant $1 fails $2 $3: $(head -n 1 "$work/output")"
  fi
}

build_all >"$work/build.log" 2>&1 &  # in the background set -e counts
if ! wait $!; then
  tail -n 60 "$work/build.log"
  fail 'the aarch64 build'
  finish
fi
can_execute=no
if "$work/cpu_facts" >/dev/null 2>&1; then can_execute=yes; fi

if runs least; then
  show_facts 4096
  run_vfork
fi
if runs rest; then
  expect_failure wrong_vfork vfork a_child_by_vfork_allocates_and_frees ''
  show_facts 65536
  run_unit_tests 4096 4K 64K
  # The core asks the platform for the size of a page, and the fake one has all sizes on x86-64 too.
  [[ ${LANEMALLOC_TEST_SCALE:-1} -eq 1 ]] || run_unit_tests 65536 64K 4K
  run_stress 4096 '' "${programs[@]}"
  run_stress 65536 '' "${programs[@]}"
  run_stress 65536 checked=1 storm signals
  run_stress 4096 lanes=shared:4 storm signals
  run_stress 65536 lanes=percpu storm  # not to be had here: the next best serves
else
  run_stress 4096 '' "${programs[@]}"
fi
finish

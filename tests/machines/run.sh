#!/usr/bin/env bash
# Runs the stress programs in emulated machines with more CPUs and nodes than there are here, while
# CPUs are taken away and brought back and threads are moved; with kernels that know concurrency ids
# (mm_cid) and one that does not.
# Called by: tests/verify.sh, and by hand. What happens inside a machine is in guest.sh.
#   run.sh [--lanes "ENTRY..."] [MACHINE...]     ENTRY as in lanes=ENTRY; the machines are those in
#   kMachines
# LANEMALLOC_TEST_SCALE multiplies the work. The console of each machine is in
# build/machines/MACHINE.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Name, architecture, suite of the kernel, CPUs (in four nodes), whether the kernel has mm_cid.
readonly kMachines=(
  'x86-16 amd64 trixie 16 yes'
  'x86-32 amd64 trixie 32 yes'
  'x86-16-old amd64 bookworm 16 no'
  'aarch64-8 arm64 trixie 8 yes'
)
readonly kNodes=4
readonly kPrograms=(storm thread_exit fork_load signals)
readonly kBuild=$PWD/build/machines
readonly kWatchdogSeconds=$((3600 * ${LANEMALLOC_TEST_SCALE:-1}))  # no bound on speed
kScale=$(awk -v scale="${LANEMALLOC_TEST_SCALE:-1}" 'BEGIN { print scale * 0.02 }')
readonly kScale

lanes='percpu shared:4'
if [[ ${1-} == --lanes ]]; then
  lanes=$2
  shift 2
fi
# shellcheck source=tests/part.sh
source tests/part.sh

# The library with a mistake in its sources, by sed: mutants that the machines must see.
build_mutant() {  # COMPILER NAME FILE SCRIPT FOLDER
  local source=$kBuild/source-$2
  rm -rf "$source"
  cp -r src "$source"
  sed -i "$4" "$source/$3"
  if cmp -s "src/$3" "$source/$3"; then
    echo "mutant $2 changes nothing in src/$3" >&2
    return 1
  fi
  "$1" -std=gnu++20 -O2 -fPIC -shared -pthread -DNDEBUG -D_GNU_SOURCE -DLANEMALLOC_VERSION='"0"' \
    -fno-builtin -fno-exceptions -fno-rtti -fvisibility=hidden -fno-threadsafe-statics \
    -ftls-model=initial-exec "-I$source" -Iinclude "$source"/*/*.cpp "$source"/*/*/*.cpp \
    -static-libstdc++ -static-libgcc -o "$5/$2.so"
}

# Programs, libraries and busybox of one architecture, as an initramfs.
build_initramfs() {  # ARCHITECTURE
  local root=$kBuild/root-$1 library=build/release program name
  local compiler=g++ c_compiler=gcc rseq=x86_64
  rm -rf "$root"
  mkdir -p "$root"/{bin,tests,lib,lib64}
  if [[ $1 == arm64 ]]; then
    compiler=aarch64-linux-gnu-g++ c_compiler=aarch64-linux-gnu-gcc library=$kBuild/release-arm64 \
      rseq=aarch64
    cmake --preset release -B "$library" --toolchain cmake/aarch64.cmake
    cmake --build "$library" --parallel "$(nproc)" --target lanemalloc
    tests/machines/fetch bookworm arm64 busybox-static "$kBuild/busybox-arm64"
    cp "$kBuild/busybox-arm64/bin/busybox" "$root/bin"
    for name in libc.so.6 ld-linux-aarch64.so.1; do
      cp "/usr/aarch64-linux-gnu/lib/$name" "$root/lib"
    done
  else
    tools/build release lanemalloc
    cp /bin/busybox "$root/bin"
    cp /lib/x86_64-linux-gnu/libc.so.6 "$root/lib"
    cp /lib64/ld-linux-x86-64.so.2 "$root/lib64"
  fi
  for program in "${kPrograms[@]}"; do
    "$compiler" -std=c++20 -g -O2 -fno-exceptions -fno-rtti -pthread "tests/stress/$program.cpp" \
      -o "$root/tests/$program" -static-libstdc++ -static-libgcc -Wl,-z,now
  done
  "$c_compiler" -O1 -pthread tests/machines/cpu_facts.c -o "$root/tests/cpu_facts"
  # Sequences that are never restarted.
  build_mutant "$compiler" no_restart "core/base/arch_${rseq}_rseq.h" 's/2f - 1f/0/' "$root/tests"
  cp "$library/liblanemalloc.so" "$root/tests"
  cp tests/machines/guest.sh "$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$kBuild/initramfs-$1"
}

build_all() {  # ARCHITECTURE SUITE
  local package
  # Debian 12's own one brings the libraries; it trips over the newer kernel.
  for package in qemu-system-x86 qemu-system-arm qemu-system-data; do
    tests/machines/fetch bookworm-backports amd64 "$package" "$kBuild/$package"
  done
  tests/machines/fetch "$2" "$1" "linux-image-cloud-$1" "$kBuild/kernel-$2-$1"
  build_initramfs "$1"
}

boot() {  # NAME ARCHITECTURE SUITE CPUS MM_CID; its console goes to build/machines/NAME.log
  local node cpus mutants=no_restart:percpu
  local command=(-L "$kBuild/qemu-system-data/usr/share/qemu" -L /usr/share/qemu
    -L /usr/share/seabios -nodefaults -no-reboot -display none -serial stdio
    -accel 'tcg,thread=single' -m 4G -smp "$4")
  # Without mm_cid only the taking of a lane is a sequence, too short to be hit in this time.
  [[ $5 == yes ]] || mutants=
  local append="quiet panic=-1 WANT_CPUS=$4 WANT_NODES=$kNodes WANT_MM_CID=$5 SCALE=$kScale"
  for ((node = 0; node < kNodes; node++)); do
    cpus=$((node * $4 / kNodes))-$(((node + 1) * $4 / kNodes - 1))
    command+=(-object "memory-backend-ram,id=m$node,size=1G"
      -numa "node,nodeid=$node,memdev=m$node,cpus=$cpus")
  done
  if [[ $2 == arm64 ]]; then
    command=("$kBuild/qemu-system-arm/usr/bin/qemu-system-aarch64" -M 'virt,gic-version=3'
      -cpu 'max,pauth=off' "${command[@]}")
    append+=' console=ttyAMA0'
  else
    command=("$kBuild/qemu-system-x86/usr/bin/qemu-system-x86_64" -M q35 -cpu max "${command[@]}")
    append+=' console=ttyS0'
  fi
  timeout --kill-after=10 "$kWatchdogSeconds" "${command[@]}" -kernel \
    "$kBuild/kernel-$3-$2"/boot/vmlinuz-* -initrd "$kBuild/initramfs-$2" -append \
    "$append LANES=\"$lanes\" MUTANTS=$mutants" </dev/null >"$kBuild/$1.log" 2>&1
}

run_machine() {  # as boot
  local status=0 line
  echo "== $1: $4 CPUs, kernel of $3 for $2"
  build_all "$2" "$3" >"$kBuild/build.log" 2>&1 &  # in the background set -e counts
  if ! wait $!; then
    tail -n 40 "$kBuild/build.log"
    fail "$1 could not be built"
    return
  fi
  boot "$@" || status=$?
  while IFS= read -r line; do
    line=${line%$'\r'}
    case $line in
      @ok*) passed=$((passed + 1)) ;;
      @SKIP*) skipped=$((skipped + 1)) ;;
      @FAILED*) failed=$((failed + 1)) ;;
      *) continue ;;
    esac
    echo "${line#@}"
  done < <(grep -a '^@' "$kBuild/$1.log" || true)
  if [[ $status -ne 0 ]] || ! grep -qa '^@done' "$kBuild/$1.log"; then
    tail -n 30 "$kBuild/$1.log" | sed 's/^/  | /'
    fail "$1 did not come to its end: status $status"
  fi
}

tools/install-packages qemu-system-x86 qemu-system-arm busybox-static cpio g++ \
  g++-aarch64-linux-gnu cmake ninja-build
mkdir -p "$kBuild"
known=' '
for machine in "${kMachines[@]}"; do
  read -ra words <<<"$machine"
  known+="${words[0]} "
  [[ $# -eq 0 || " $* " == *" ${words[0]} "* ]] || continue
  run_machine "${words[@]}"
done
for name in "$@"; do
  [[ $known == *" $name "* ]] || fail "no machine $name; there are:$known"
done
finish

#!/usr/bin/env bash
# The wheels: built, told by auditwheel, and installed by pip in a clean Debian, without a network,
# where the command then runs programs. The library in them has the hits and the exports of the one
# that is measured.
# With LANEMALLOC_TEST_SCALE above 1: in Debian 11, 12 and 13, the aarch64 wheel too, whose library
# runs under qemu; and a second build is equal to the first.
# Called by: run.sh, and by hand.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
# shellcheck source=tests/packages/roots.sh
source "$root/tests/packages/roots.sh"
"$root/tools/install-packages" binutils valgrind python3 python3-venv unzip >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
targets=(x86_64) releases=(bookworm)
if [[ ${LANEMALLOC_TEST_SCALE:-1} -gt 1 ]]; then
  targets+=(aarch64)
  releases=(bullseye bookworm trixie)
fi
version=$("$root/tools/version")

for target in "${targets[@]}"; do
  wheel=$work/dist/lanemalloc-$version-py3-none-manylinux_2_28_$target.whl
  check "the $target wheel is made" "$root/tools/wheels" --only "$target" "$work/dist"
  [[ -e $wheel ]] || { fail "the $target wheel has the name that an index takes"; finish; }
  unzip -q "$wheel" -d "$work/$target"
  native=$work/$target/lanemalloc/native
  check "$target: what it needs of the system, and its exports" python3 \
    "$root/tests/golden/binary.py" --old-glibc "$native/liblanemalloc.so"
  for file in "$native"/lanemalloc-* "$native"/*.so; do
    check "$target: ${file##*/} needs glibc 2.28 at most, and no C++ library" python3 \
      "$root/tests/packages/needs.py" "$file" 2.28
  done
done
check 'the hits of the library are those that are measured' python3 \
  "$root/tests/golden/fast_path.py" "$work/x86_64/lanemalloc/native/liblanemalloc.so"

# use COMMAND...: as somebody would who has installed it.
use() {
  local folder=$1
  in_root "$folder" /opt/tool/bin/lanemalloc --version | grep -F "$version" &&
    in_root "$folder" /opt/tool/bin/lanemalloc run -- ls / 2>&1 | grep 'exit status 0' &&
    in_root "$folder" /opt/tool/bin/lanemalloc profile -- python3 -c \
      'list(map(bytes, range(9999)))' 2>&1 | grep 'by function' &&
    in_root "$folder" /opt/tool/bin/lanemalloc sim --cores 2 --against none | grep owned &&
    in_root "$folder" env LD_PRELOAD=/opt/tool/lib/liblanemalloc.so python3 -c '
import threading
threads = [threading.Thread(target=lambda: list(map(bytes, range(9999)))) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sum("liblanemalloc" in line for line in open("/proc/self/maps")) > 0)' | grep True
}
if can_have_roots; then
  for release in "${releases[@]}"; do
    folder=$work/$release
    check "a clean $release" make_root "$release" "$folder" python3-venv
    python=$(in_root "$folder" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    # What it depends on, for that Python: fetched here, for the root has no network.
    check "$release: what it depends on" pip download --quiet --only-binary=:all: \
      --python-version "$python" --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
      --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
      -d "$folder/opt/wheels" "$work/dist/lanemalloc-$version-py3-none-manylinux_2_28_x86_64.whl"
    check "$release: pip installs it" in_root "$folder" sh -c 'python3 -m venv /opt/tool &&
      /opt/tool/bin/pip install --no-index --find-links /opt/wheels lanemalloc &&
      mkdir -p /opt/tool/lib && ln -s /opt/tool/lib/python3*/site-packages/lanemalloc/native/*.so \
        /opt/tool/lib'
    check "$release: the command works" use "$folder"
  done
else
  skip 'clean roots: these need root'
fi

if [[ ${LANEMALLOC_TEST_SCALE:-1} -gt 1 ]]; then
  "$root/tools/install-packages" g++-aarch64-linux-gnu qemu-user >&2
  aarch64-linux-gnu-gcc "$root/tests/projects/uses_malloc.c" -I"$root/include" -o "$work/program" \
    "$work/aarch64/lanemalloc/native/liblanemalloc.so" -Wl,--allow-shlib-undefined
  check 'aarch64: a program runs with the library of the wheel' test "$(qemu-aarch64 \
    -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$work/aarch64/lanemalloc/native" \
    -E LD_PRELOAD="$work/aarch64/lanemalloc/native/liblanemalloc.so" "$work/program")" = ok
  check 'it is made again' "$root/tools/wheels" --only x86_64 "$work/again"
  name=lanemalloc-$version-py3-none-manylinux_2_28_x86_64.whl
  check 'both are equal' cmp "$work"/{dist,again}/"$name"
fi
finish

#!/usr/bin/env bash
# A release: two runs over the same sources make the same bytes; the checksums are those of the
# files; the SBOM is one (spdx-tools); the archive builds by itself; a program that was linked with
# this version's library runs with the next one's, under its new number; and the changelog names the
# version. With LANEMALLOC_TEST_SCALE above 1 the release has its wheels.
# Called by: run.sh, and by hand.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
"$root/tools/install-packages" cmake ninja-build g++ gcc python3 python3-venv >&2
venv=$root/build/dist-venv
readonly kNeeds=('spdx-tools==0.8.*')
if [[ $(cat "$venv/made" 2>/dev/null) != "${kNeeds[*]}" ]]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${kNeeds[@]}" >&2
  echo "${kNeeds[*]}" >"$venv/made"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$("$root/tools/version")
what=(--sources-only)
[[ ${LANEMALLOC_TEST_SCALE:-1} -eq 1 ]] || what=()

check 'it is made' "$root/tools/make-dist" "${what[@]}" "$work/one"
check 'it is made again' "$root/tools/make-dist" "${what[@]}" "$work/two"
check 'both are equal' diff -r "$work/one" "$work/two"
check 'the checksums are those of the files' sh -c "cd '$work/one' && sha256sum --check SHA256SUMS"
check 'all files have one' test "$(find "$work/one" -type f | wc -l)" -eq \
  $(($(wc -l <"$work/one/SHA256SUMS") + 1))
check 'the SBOM is one' "$venv/bin/pyspdxtools" -i "$work/one/lanemalloc-$version.spdx.json"
check 'the SBOM has the checksum of the archive' grep -q \
  "$(sha256sum "$work/one/lanemalloc-$version.tar.gz" | cut -d ' ' -f 1)" \
  "$work/one/lanemalloc-$version.spdx.json"
check 'the changelog begins with this version' grep -qE "^## .*\b${version//./\\.}\b" \
  <(sed -n '/^## /{p;q}' "$root/CHANGELOG.md")

# The archive, and the version after this one.
tar -C "$work" -xzf "$work/one/lanemalloc-$version.tar.gz"
tree=$work/lanemalloc-$version
build() {
  cmake -G Ninja -S "$tree" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DLANEMALLOC_TOOL=OFF &&
    cmake --build "$work/build" --target lanemalloc
}
library=$work/build/liblanemalloc.so
check 'the archive builds by itself' build
check 'a program is linked with it' gcc "$root/tests/projects/uses_malloc.c" -I"$tree/include" \
  "$library" -o "$work/program"
next=${version%.*}.$((${version##*.} + 1))
check 'the next version is written everywhere' "$tree/tools/version" "$next"
check 'and all files name it' "$tree/tools/version" --check
rm "$library"*
check 'the next version builds' build
check 'it has its number' test -f "$library.$next" -a ! -e "$library.$version"
check 'the program of the version before runs with it' test \
  "$(LD_LIBRARY_PATH=$work/build "$work/program")" = ok

# The checker of versions itself.
sed -i "s/\"version\": \"$next\"/\"version\": \"0.0.0\"/" \
  "$tree/packaging/vcpkg/lanemalloc/vcpkg.json"
if found=$("$tree/tools/version" --check) || [[ $found != *'vcpkg.json: 0.0.0, not '* ]]; then
  fail "a file with another version is found: $found"
else
  ok 'a file with another version is found'
fi
finish

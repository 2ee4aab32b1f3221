#!/usr/bin/env bash
# Other projects' package managers: a Conan recipe, a Meson wrap, a vcpkg port. Each builds the
# programs of tests/projects, which are another project's, and runs them. The tool vcpkg is in none
# of the registries that we use: its port runs under cmake -P, with vcpkg's functions as vcpkg
# documents them (vcpkg.cmake); what vcpkg itself adds is not tested.
# Called by: run.sh, and by hand.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
"$root/tools/install-packages" cmake ninja-build g++ python3 python3-venv >&2
venv=$root/build/foreign-venv
readonly kNeeds=('conan==2.*' 'meson==1.*')
if [[ $(cat "$venv/made" 2>/dev/null) != "${kNeeds[*]}" ]]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${kNeeds[@]}" >&2
  echo "${kNeeds[*]}" >"$venv/made"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_PRELOAD LANEMALLOC_OPTIONS
version=$("$root/tools/version")
prints_ok() { [[ $("$@" 2>&1 | tee /dev/stderr) == ok ]]; }
offline() {
  if [[ $EUID -eq 0 ]]; then unshare --net "$@"; else "$@"; fi
}
programs=(malloc_lanemalloc malloc_static fronts_lanemalloc fronts_static fronts_prefixed)

# The project of tests/projects, by what CMake finds under a prefix.
by_cmake() {
  local name=$1
  shift
  check "$name: another project is configured" cmake -G Ninja -S "$root/tests/projects" \
    -B "$work/$name" -DCMAKE_BUILD_TYPE=Release "$@"
  check "$name: it is built" cmake --build "$work/$name"
  for program in "${programs[@]}"; do
    check "$name: $program" prints_ok "$work/$name/$program"
  done
}

conan() { CONAN_HOME=$work/conan-home offline "$venv/bin/conan" "$@"; }
conan profile detect >/dev/null 2>&1
check 'conan: the package is made' conan create "$root/packaging/conan" --build=missing --no-remote
cat >"$work/conanfile.txt" <<END
[requires]
lanemalloc/$version
[generators]
CMakeToolchain
CMakeDeps
END
check 'conan: another project asks for it' conan install "$work" --output-folder="$work/conan" \
  --no-remote
by_cmake conan-project -DCMAKE_TOOLCHAIN_FILE="$work/conan/conan_toolchain.cmake"

# As vcpkg installs: by the port, into a folder of packages.
check 'vcpkg: the port installs' offline cmake -DPORT=lanemalloc -DROOT="$work/vcpkg" \
  -DPORT_FOLDER="$root/packaging/vcpkg/lanemalloc" -P "$here/vcpkg.cmake"
check 'vcpkg: licence and usage are there' test \
  -s "$work/vcpkg/packages/lanemalloc/share/lanemalloc/copyright" \
  -a -s "$work/vcpkg/packages/lanemalloc/share/lanemalloc/usage"
by_cmake vcpkg-project -DCMAKE_PREFIX_PATH="$work/vcpkg/packages/lanemalloc"

project=$work/meson
mkdir -p "$project/subprojects"
cp -r "$root/packaging/meson/"* "$project/subprojects"
check 'meson: the archive is made' "$root/tools/make-dist" --sources-only "$work/dist"
cp "$work/dist/lanemalloc-$version.tar.gz" "$project/subprojects/packagefiles"
cp "$root"/tests/projects/*.c* "$project"
cat >"$project/meson.build" <<'END'
project('foreign', 'c', 'cpp', default_options: ['cpp_std=c++17', 'buildtype=release'])
foreach suffix : ['', '-static']
  dep = dependency('lanemalloc' + suffix)
  name = suffix == '' ? 'lanemalloc' : 'static'
  executable('malloc_' + name, 'uses_malloc.c', dependencies: dep)
  executable('fronts_' + name, 'uses_fronts.cpp', dependencies: dep)
endforeach
executable('fronts_prefixed', 'uses_fronts.cpp', dependencies: dependency('lanemalloc-prefixed'))
END
check 'meson: another project is configured' offline "$venv/bin/meson" setup "$project/build" \
  "$project"
check 'meson: it is built' ninja -C "$project/build"
for program in "${programs[@]}"; do
  check "meson: $program" prints_ok "$project/build/$program"
done
finish

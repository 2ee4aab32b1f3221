#!/usr/bin/env bash
# The allocators to compare with, as preloadable libraries in build/peers/:
#   jemalloc mimalloc2 tcmalloc tbbmalloc scudo   Debian's packages (links to the installed files)
#   mimalloc3 snmalloc rpmalloc jemalloc531       built from the sources inside their crates
# With the argument `hardened`, those that check most, which nobody measures (tests/misuse):
#   mimalloc3-secure snmalloc-checks hardened_malloc
# Called by: bench/run.sh, or by hand. A peer that cannot be had is reported and left out; this is
# never fatal. build/peers/versions.txt, or hardened.txt, says what each one is. Each library is
# proved to be in use with whose.c (dladdr of malloc). What is built already stays, unless
# REBUILD=1.
set -euo pipefail
# shellcheck source=bench/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

out=$root/build/peers
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
from_crates=(mimalloc3 snmalloc rpmalloc jemalloc531)
versions=$out/versions.txt
if [[ ${1-} == hardened ]]; then
  from_crates=(mimalloc3-secure snmalloc-checks hardened_malloc)
  versions=$out/hardened.txt
elif [[ $# -gt 0 ]]; then
  echo 'usage: build.sh [hardened]' >&2
  exit 2
fi
: >"$versions.new"

cc -O1 -o "$out/whose" "$root/bench/peers/whose.c"

# admit NAME VERSION: keeps build/peers/libNAME.so only if a preload of it really takes malloc and
# free over.
admit() {
  local name=$1 version=$2 file=$out/lib$1.so seen
  if [[ -e $file ]] && seen=$(LD_PRELOAD=$file "$out/whose" 2>&1) &&
      [[ $seen == "$(readlink -f "$file")" ]]; then
    say "peer $name: $version"
    printf '%s\t%s\n' "$name" "$version" >>"$versions.new"
  else
    warn "peer $name: left out (preloaded, malloc comes from: ${seen:-nothing built})"
    rm -f "$file"
  fi
}

from_debian() {
  local name=$1 package=$2 pattern=$3 file
  need_packages "$package" >"$work/apt.log" 2>&1 || true
  file=$(dpkg-query -L "$package" 2>/dev/null | grep -E "$pattern" | head -n 1) || true
  [[ -z $file ]] || ln -sfn "$(readlink -f "$file")" "$out/lib$name.so"
  admit "$name" "$(dpkg-query -W -f='${Version}' "$package" 2>/dev/null || true) (Debian $package)"
}

# Brings the crates' sources to $work/vendor through cargo's own client.
crate_sources() {
  command -v cargo >/dev/null || need_packages cargo >"$work/apt.log" 2>&1 || return 1
  mkdir -p "$work/src"
  : >"$work/src/lib.rs"
  cat >"$work/Cargo.toml" <<'TOML'
[package]
name = "peers"
version = "0.0.0"
edition = "2018"
[dependencies]
libmimalloc-sys = ">=0.1.49"
snmalloc-sys = ">=0.7.6"
rpmalloc-sys = ">=0.2.3"
tikv-jemalloc-sys = ">=0.7.1"
hardened-malloc-sys = ">=16.0"
TOML
  (cd "$work" && cargo vendor vendor) >"$work/cargo.log" 2>&1 || {
    tail -n 5 "$work/cargo.log" >&2
    return 1
  }
}

crate_version() { sed -n 's/^version = "\(.*\)"/\1/p' "$work/vendor/$1/Cargo.toml" | head -n 1; }

# build NAME COMMAND...: runs it with its output in a log, shown if it fails.
build() {
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>&1 || {
    warn "peer $name: build failed:"
    tail -n 15 "$work/$name.log" >&2
    rm -f "$out/lib$name.so"
  }
}

# build_mimalloc3 [ARGUMENT OF cc...]
build_mimalloc3() {
  local at=$work/vendor/libmimalloc-sys/c_src/mimalloc/v3 name=${FUNCNAME[0]#build_}
  [[ $# -eq 0 ]] || name+=-secure
  cc -O3 -DNDEBUG -std=gnu11 -fPIC -shared -fvisibility=hidden -ftls-model=initial-exec \
    -fno-builtin-malloc -DMI_MALLOC_OVERRIDE -DMI_SHARED_LIB -DMI_SHARED_LIB_EXPORT \
    -DMI_BUILD_RELEASE "$@" -I"$at/include" "$at/src/static.c" -o "$out/lib$name.so" -pthread
}
build_mimalloc3-secure() { build_mimalloc3 -DMI_SECURE=4; }

# build_snmalloc [SUFFIX]
build_snmalloc() {
  local cxx
  cxx=$(command -v clang++-19 || command -v clang++ || command -v g++)
  cmake -S "$work/vendor/snmalloc-sys/upstream" -B "$work/snmalloc" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$cxx" -DSNMALLOC_BUILD_TESTING=OFF -DSNMALLOC_STATIC_LIBRARY=OFF
  cmake --build "$work/snmalloc" --target "snmallocshim${1-}" -j2
  cp "$work/snmalloc/libsnmallocshim${1-}.so" "$out/libsnmalloc${1-}.so"
}
build_snmalloc-checks() { build_snmalloc -checks; }

# With the crate's default settings, which are the project's.
build_hardened_malloc() {
  local crate=$work/vendor/hardened-malloc-sys cc settings
  local at=$crate/vendor/hardened-malloc
  cc=$(command -v clang-19 || command -v clang || command -v gcc)
  mapfile -t settings < <(sed -nE 's/^([A-Z_]+=[a-z0-9]+)$/-D\1/p' "$crate/config-default.conf")
  "$cc" -O3 -std=c2x -fPIC -shared -D_GNU_SOURCE -fvisibility=hidden "${settings[@]}" -I"$at" \
    -I"$at/include" -I"$at/third_party" "$at"/{chacha,h_malloc,memory,pages,random}.c \
    "$crate/src/util.c" -o "$out/libhardened_malloc.so" -pthread
}

build_rpmalloc() {
  cc -O3 -DNDEBUG -D_GNU_SOURCE=1 -std=c11 -fPIC -shared -fomit-frame-pointer -fvisibility=hidden \
    -DENABLE_PRELOAD=1 -DENABLE_OVERRIDE=1 \
    "$work/vendor/rpmalloc-sys/rpmalloc/rpmalloc/rpmalloc.c" -o "$out/librpmalloc.so" -pthread -ldl
}

# As jemalloc's own `./configure && make` builds it: the crate keeps the generated configure beside
# the sources and prefixes the names by an option, which is not given here.
build_jemalloc531() {
  local crate=$work/vendor/tikv-jemalloc-sys version
  version=$(crate_version tikv-jemalloc-sys)
  cp "$crate/configure/configure" "$crate/jemalloc/configure"
  (cd "$crate/jemalloc" && ./configure --with-version="${version#*+}" && make -j2 build_lib_shared)
  cp -L "$crate/jemalloc/lib/libjemalloc.so" "$out/libjemalloc531.so"
}

version_of() {
  case $1 in
    mimalloc3 | mimalloc3-secure)
      [[ $1 == mimalloc3 ]] || printf 'MI_SECURE=4, '
      printf '%s (crate libmimalloc-sys %s)\n' \
        "$(awk '/define MI_MALLOC_VERSION/{v=$3; printf "%d.%d.%d", v/10000, v/100%100, v%100}' \
        "$work"/vendor/libmimalloc-sys/c_src/mimalloc/v3/include/mimalloc.h)" \
        "$(crate_version libmimalloc-sys)" ;;
    snmalloc | snmalloc-checks) echo "$(crate_version snmalloc-sys) (crate snmalloc-sys)" ;;
    hardened_malloc) echo "$(crate_version hardened-malloc-sys) (crate hardened-malloc-sys)" ;;
    rpmalloc)
      printf '%s (crate rpmalloc-sys %s)\n' \
        "$(head -n 1 "$work/vendor/rpmalloc-sys/rpmalloc/CHANGELOG" | tr -d '\r')" \
        "$(crate_version rpmalloc-sys)" ;;
    jemalloc531)
      printf '%s (crate tikv-jemalloc-sys %s)\n' \
        "$(sed -n 's/^\* \([0-9.]*\) (.*/\1/p' "$work/vendor/tikv-jemalloc-sys/jemalloc/ChangeLog" |
        head -n 1)" "$(crate_version tikv-jemalloc-sys | cut -d+ -f1)" ;;
  esac
}

if [[ $versions == "$out/versions.txt" ]]; then
  from_debian jemalloc libjemalloc2 '/libjemalloc\.so\.2$'
  from_debian mimalloc2 libmimalloc2.0 '/libmimalloc\.so\.2(\.0)?$'
  from_debian tcmalloc libtcmalloc-minimal4 '/libtcmalloc_minimal\.so\.4$'
  from_debian tbbmalloc libtbbmalloc2 '/libtbbmalloc_proxy\.so\.2$'
  from_debian scudo libclang-rt-19-dev "/libclang_rt\.scudo_standalone-$(uname -m)\.so$"
fi

missing=()
for name in "${from_crates[@]}"; do
  version=$(sed -n "s/^$name\t//p" "$versions" 2>/dev/null || true)
  if [[ ${REBUILD:-0} != 1 && -n $version && -e $out/lib$name.so ]]; then
    admit "$name" "$version"
  else
    missing+=("$name")
  fi
done
if ((${#missing[@]} > 0)); then
  if crate_sources; then
    for name in "${missing[@]}"; do
      build "$name" "build_$name"
      admit "$name" "$(version_of "$name")"
    done
  else
    warn "peers ${missing[*]}: left out, cargo cannot bring their sources"
  fi
fi
mv "$versions.new" "$versions"

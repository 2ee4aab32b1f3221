#!/usr/bin/env bash
# The Rust crates: their tests, examples, lints, format and documentation, with Debian 12's Rust
# (1.63, the oldest that they support) and with the one in PATH if that is another; their
# declarations against the C headers; and the packages, unpacked and built elsewhere.
# Called by: tests/run.sh, or by hand. Takes two or three minutes. Dependencies come from the
# crates' registry once, into build/rust/vendor.
set -euo pipefail
cd "$(dirname "$0")/../.."

root=$PWD
work=$root/build/rust
logs=$work/logs
mkdir -p "$logs"
# shellcheck source=tests/part.sh
source tests/part.sh
packages=(cargo rustc g++ libc6-dev python3)
! runs rest || packages+=(rust-clippy rustfmt bindgen libclang1-14 binutils)
tools/install-packages "${packages[@]}"
cd rust
unset RUSTFLAGS RUSTDOCFLAGS CARGO_TARGET_DIR LANEMALLOC_OPTIONS LD_PRELOAD RUSTC_WRAPPER
export CARGO_TERM_COLOR=never

newer=$(command -v cargo)

# use_toolchain NAME: what `cargo` is from now on, and where it builds.
use_toolchain() {
  toolchain=$1
  [[ $1 != debian ]] || export PATH=/usr/bin:/bin
  [[ $1 == debian ]] || export PATH=${newer%/*}:/usr/bin:/bin
  export CARGO_TARGET_DIR=$work/target-$1
}

# check_tests NAME CARGO-ARGUMENT...: the tests that cargo counts. Programs that do not build are
# one that failed.
check_tests() {
  local name=$1 log=$logs/$toolchain-${1// /-}.log status=0 ok bad
  shift
  cargo test --offline --no-fail-fast "$@" >"$log" 2>&1 || status=$?
  # A test's own line may have what the program prints in it.
  read -r ok bad < <(awk '/^test result: / { ok += $4; bad += $6 } END { print ok + 0, bad + 0 }' \
    "$log")
  if [[ $status -ne 0 || $ok -eq 0 ]]; then
    tail -n 100 "$log"
    [[ $bad -gt 0 ]] || bad=1
  fi
  echo "$name ($toolchain): $ok passed, $bad failed"
  passed=$((passed + ok)) failed=$((failed + bad))
}

# The sources of what the crates depend on. Debian's cargo knows the registry's present protocol as
# an experiment only.
fetch_dependencies() {
  local lock
  lock=$(sha256sum <Cargo.lock)
  [[ $lock != "$(cat "$work/vendored" 2>/dev/null)" ]] || return 0
  rm -rf "$work/vendor"
  CARGO_HOME=$work/home-online RUSTC_BOOTSTRAP=1 CARGO_REGISTRIES_CRATES_IO_PROTOCOL=sparse \
    cargo -Z sparse-registry vendor --locked --quiet "$work/vendor" >/dev/null
  echo "$lock" >"$work/vendored"
}

write_config() {
  export CARGO_HOME=$work/home
  mkdir -p "$CARGO_HOME"
  printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "%s"\n' \
    "$work/vendor" >"$CARGO_HOME/config.toml"
}

document() {
  RUSTDOCFLAGS='-D warnings' cargo doc --offline --no-deps --features lanemalloc/allocator-api2
}

# Beside the work, for it gets a lock file.
copy_chapter() {
  mkdir -p "$work/chapter/src"
  sed "s|\.\./\.\./\.\./|$root/|" "$root/tests/rust/chapter/Cargo.toml" >"$work/chapter/Cargo.toml"
  sed "s|\.\./\.\./\.\./\.\./|$root/|" "$root/tests/rust/chapter/src/lib.rs" \
    >"$work/chapter/src/lib.rs"
  cp Cargo.lock "$work/chapter"
}

check_toolchain() {
  check_tests 'tests' --workspace --features lanemalloc/allocator-api2
  check_tests 'chapter' --doc --manifest-path "$work/chapter/Cargo.toml"
  # What a newer compiler says beside that changes with each release of it.
  [[ $toolchain == debian || ${LANEMALLOC_TEST_SCALE:-1} -gt 1 ]] || return 0
  check "clippy ($toolchain)" cargo clippy --offline --workspace --all-targets \
    --features lanemalloc/allocator-api2 -- -D warnings
  check "documentation ($toolchain)" document
}

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

# The packages as they would be published, unpacked where there is no repository beside them, in a
# program.
build_from_packages() {
  local name
  for name in lanemalloc-sys lanemalloc; do
    (cd "$name" && cargo package --offline --no-verify --allow-dirty --quiet) || return 1
    tar -xzf "$CARGO_TARGET_DIR/package/$name-$("$root/tools/version").crate" -C "$place"
  done
  [[ $(find "$place" -type l | wc -l) -eq 0 ]] || return 1
  cp -r "$root/tests/rust/program" "$place"
  (cd "$place/program" && CARGO_TARGET_DIR=$place/target cargo build --offline --release --quiet) ||
    return 1
  "$place/target/release/program" && cp "$place/target/release/program" "$work/program"
}

needs_libc_only() {
  ! readelf -d "$work/program" | grep NEEDED | grep -vE 'libc\.so|libgcc_s\.so|ld-linux'
}
# C code in the same program keeps the C library's.
leaves_malloc_alone() {
  ! nm --defined-only "$work/program" | grep -wE 'malloc|free|calloc|realloc'
}
versions_agree() {
  local version
  version=$(sed -nE 's/^project\(lanemalloc VERSION ([0-9.]+).*/\1/p' ../CMakeLists.txt)
  [[ $(grep -hcFx "version = \"$version\"" ./*/Cargo.toml | sort -u) == 1 ]] &&
    grep -Fq "version = \"$version\", path = \"../lanemalloc-sys\"" lanemalloc/Cargo.toml
}

use_toolchain debian
fetch_dependencies
write_config
copy_chapter
if runs least; then
  check_tests 'tests' --package lanemalloc --tests
  check 'versions agree' versions_agree
fi
runs rest || finish

check_toolchain
check_tests 'tests with checked=1' --release --package lanemalloc --features checked --tests
check 'format' cargo fmt --all -- --check
check 'packages' build_from_packages
check 'needs the C library only' needs_libc_only
check 'leaves malloc alone' leaves_malloc_alone
check 'headers' python3 "$root/tests/rust/headers.py" "$work/headers"

if [[ $("$newer" --version) == "$(cargo --version)" ]]; then
  skip "no other Rust than Debian's in PATH"
else
  use_toolchain newer
  cargo --version
  check_toolchain
fi
finish

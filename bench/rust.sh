#!/usr/bin/env bash
# Real Rust programs, built with the system allocator and with lanemalloc as their global allocator,
# and measured against each other: bench/rust/run.py says how. Takes about six minutes the first
# time, most of them for building; ROUNDS=N pairs of runs (7). Needs a Rust that the programs can be
# built with, and the crates' registry. Nothing here passes or fails, unless outputs differ.
set -euo pipefail
# shellcheck source=bench/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if ! version=$(cargo --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+' | head -1) ||
  [[ $(printf '%s\n' 1.85 "$version" | sort -V | head -1) != 1.85 ]]; then
  warn "bench: the programs need Rust 1.85 or newer, and cargo in PATH is ${version:-missing}" \
    "(Debian: cargo-web rustc-web)"
  exit 2
fi
need_packages valgrind g++ libc6-dev python3
need_python
exec "$python" "$root/bench/rust/run.py" --rounds "${ROUNDS:-7}" "$@"

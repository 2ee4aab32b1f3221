#!/usr/bin/env bash
# The reference and the manual pages: no warnings, and nothing public without either; links; the
# page of system calls.
# Called by: tests/run.sh, and by hand.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages python3 doxygen mandoc man-db groff-base binutils
[[ -e build/release/liblanemalloc.so ]] || make build
exec python3 tests/docs/manual.py

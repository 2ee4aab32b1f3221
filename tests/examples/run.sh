#!/usr/bin/env bash
# The programs of the chapters in docs/, README's commands, and the programs of examples/, shortly.
# Called by: tests/run.sh, and by hand. Needs the release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages g++ libc6-dev make pkgconf python3
# shellcheck source=tests/part.sh
source tests/part.sh
[[ -e build/release/lanemalloc-replay ]] || tools/build release all lanemalloc_tool >&2
add_up python3 tests/examples/chapters.py
# Each run.sh takes the seconds of a run and their rounds, and ends with a line that says that all
# went well.
ends_well() { [[ $("$1" 1 1 2>&1 | tee /dev/stderr | tail -n 1) == 'every answer was right' ]]; }
for script in examples/*/run.sh; do check "$script" ends_well "$script"; done
finish

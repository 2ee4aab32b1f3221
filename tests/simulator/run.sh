#!/usr/bin/env bash
# Simulates the shipped engine on 128 cores, and holds the cache lines that go from core to core
# against bars and against golden figures: run.py says how.
# Called by: tests/run.sh, and by hand: run.sh [--update] [--json FILE] [--where ALLOCATOR WORKLOAD
# CORES]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/part.sh
source "$here/../part.sh"
"$here/../../tools/install-packages" g++ binutils cmake ninja-build python3 >&2
exec python3 "$here/run.py" "$@"

#!/usr/bin/env bash
# Checks the lock-free algorithms of src/ in models: run.py says how.
# Called by: tests/run.sh, and by hand: run.sh [--only PROGRAM] [--mutant NAME] [--replay SCENARIO FILE]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$here/../../tools/install-packages" g++ binutils relacy-dev python3 >&2
exec python3 "$here/run.py" "$@"

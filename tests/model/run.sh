#!/usr/bin/env bash
# Checks the lock-free algorithms: of src/ itself (run.py says how), and models of the whole
# protocols (protocol/run.py).
# Called by: tests/run.sh, and by hand: run.sh [--only PROGRAM] [--mutant NAME] [--replay SCENARIO
# FILE] for the first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/part.sh
source "$here/../part.sh"
packages=(g++ binutils relacy-dev python3)
! runs rest || packages+=(spin)
"$here/../../tools/install-packages" "${packages[@]}" >&2
[[ $# -eq 0 ]] || exec python3 "$here/run.py" "$@"

add_up python3 "$here/run.py"
! runs rest || add_up python3 "$here/protocol/run.py"
finish

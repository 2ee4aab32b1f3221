#!/usr/bin/env bash
# Fuzzes the core over the fake platform, and the text of options: run.py says how.
# Called by: tests/run.sh, and by hand: run.sh [ARGUMENT OF run.py...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/part.sh
source "$here/../part.sh"
packages=(g++ python3)
! runs rest || packages+=(clang-19 libclang-rt-19-dev)
"$here/../../tools/install-packages" "${packages[@]}" >&2
exec python3 "$here/run.py" --depth "$kDepth" "$@"

#!/usr/bin/env bash
# Runs programs that misuse memory, and says whether what comes of it is worse than before: run.py
# says how. The rest adds the other entries of lanes, the C library, and the peers in build/peers
# (bench/peers/build.sh, also with `hardened`), of which nothing is expected.
# Called by: tests/run.sh, and by hand: run.sh [ARGUMENT OF run.py...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/part.sh
source "$here/../part.sh"
"$here/../../tools/install-packages" gcc g++ libc6-dev python3 >&2
exec python3 "$here/run.py" --depth "$kDepth" "$@"

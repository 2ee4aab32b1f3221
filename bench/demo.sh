#!/usr/bin/env bash
# make demo: a server of 64 threads and redis, under the C library's malloc and under lanemalloc,
# side by side. Takes about two minutes. Installs what it needs, leaves no process and no file but
# build/.
set -euo pipefail
# shellcheck source=bench/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_packages g++ libc6-dev python3 redis-server redis-tools
need_python
[[ -e $root/build/release/liblanemalloc.so ]] || "$root/tools/build" release
exec "$python" "$root/bench/demo/demo.py" "$@"

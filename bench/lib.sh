# shellcheck shell=bash
# Shared by the bench and golden scripts: the root, messages, packages.
# Sourced by: bench/run.sh, bench/demo.sh, bench/peers/build.sh, tests/golden/run.sh.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export root

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }

# need_packages NAME...: installs the Debian packages that are not there yet.
need_packages() { "$root/tools/install-packages" "$@"; }

# need_python: sets $python to an interpreter of at least 3.11.
need_python() {
  python=$(command -v python3) || { need_packages python3; python=$(command -v python3); }
  export python
}

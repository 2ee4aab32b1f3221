# shellcheck shell=bash
# Shared by the bench and golden scripts: the root, messages, packages.
# Sourced by: bench/run.sh, bench/demo.sh, bench/peers/build.sh, tests/golden/run.sh.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export root

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }

# need_packages NAME...: installs the Debian packages that are not there yet.
need_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}\n' "$name" 2>/dev/null | grep -q ' installed' || missing+=("$name")
  done
  ((${#missing[@]} == 0)) || "$root/tools/install-packages" "${missing[@]}"
}

# need_python: sets $python to an interpreter of at least 3.11.
need_python() {
  python=$(command -v python3) || { need_packages python3; python=$(command -v python3); }
  export python
}

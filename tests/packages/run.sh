#!/usr/bin/env bash
# The ways by which the library and the command reach people: each is made as docs/install.md says,
# and used in a place that has nothing else.
# The least: all files name one version. The scripts take a quarter of an hour and fetch a Debian.
# So without an argument they need LANEMALLOC_TEST_SCALE above 1 (make verify). The wheels in Debian
# 11 and 13, the aarch64 wheel, and that what is made twice is equal, need it in any case.
# Called by: tests/run.sh, and by hand. Arguments are scripts of this folder, without .sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"

! runs least || check 'all files name one version' "$root/tools/version" --check
if runs rest && (($# == 0 && ${LANEMALLOC_TEST_SCALE:-1} == 1)); then
  skip 'the ways by which it reaches people: for make verify, or by name'
elif runs rest; then
  for script in "$here"/*.sh; do
    name=$(basename "$script" .sh)
    [[ $name != run && $name != roots && (" $* " == *" $name "* || $# -eq 0) ]] || continue
    echo "== packages: $name"
    add_up "$script"
  done
fi
finish

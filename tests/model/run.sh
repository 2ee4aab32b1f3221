#!/usr/bin/env bash
# Checks the lock-free algorithms: of src/ itself (run.py says how), and models of the whole protocols (protocol/run.py).
# Called by: tests/run.sh, and by hand: run.sh [--only PROGRAM] [--mutant NAME] [--replay SCENARIO FILE] for the first.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$here/../../tools/install-packages" g++ binutils relacy-dev python3 spin >&2
[[ $# -eq 0 ]] || exec python3 "$here/run.py" "$@"

passed=0 failed=0
# Runs one of them, shows what it prints, and adds its counts.
add() {
  local output status=0
  output=$(python3 "$1") || status=$?
  printf '%s\n' "$output"
  if [[ ${output##*$'\n'} =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    [[ $status -eq 0 || ${BASH_REMATCH[2]} -gt 0 ]] || failed=$((failed + 1))
  else
    failed=$((failed + 1))
  fi
}
add "$here/protocol/run.py"
add "$here/run.py"
echo "$passed passed, $failed failed, 0 skipped"
[[ $failed -eq 0 ]]

#!/usr/bin/env bash
# The programs of the chapters in docs/, README's commands, and the programs of examples/, shortly. Called by: tests/run.sh, and
# by hand. Needs the release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/install-packages g++ libc6-dev make pkgconf python3
log=$(mktemp)
trap 'rm -f "$log"' EXIT
python3 tests/examples/chapters.py | tee "$log" || true
[[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]] || { echo 'FAILED: chapters.py'; exit 1; }
passed=${BASH_REMATCH[1]} failed=${BASH_REMATCH[2]} skipped=${BASH_REMATCH[3]}

# Each run.sh takes the seconds of a run and their rounds, and ends with a line that says that all went well.
for script in examples/*/run.sh; do
  if "$script" 1 1 2>&1 | tee "$log" && [[ $(tail -n 1 "$log") == 'every answer was right' ]]; then
    echo "ok $script"
    passed=$((passed + 1))
  else
    echo "FAILED $script"
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 && $passed -gt 0 ]]

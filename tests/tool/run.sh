#!/usr/bin/env bash
# Tests the command `lanemalloc`: the reader over memory made by hand and over real processes, and
# each subcommand as people use it: in a terminal, with bad process ids, dying targets, very many
# threads, as another user; the exporter with Prometheus; reports in a browser; the wheel.
# Called by: tests/run.sh, and by hand.
#   run.sh [--lib PATH] [--fast] [PYTEST ARGUMENTS...]
# --fast leaves the wheel out. The least is kLeast below; tests that are named run whatever the
# depth.
set -euo pipefail
cd "$(dirname "$0")/../.."

library=$PWD/build/release/liblanemalloc.so
# shellcheck source=tests/part.sh
source tests/part.sh
# Neither a browser nor a terminal, and no program that is watched for long.
readonly kLeast=(tests/tool/test_{explain,figures,process,reader,report,style}.py)
case $kDepth in
  least) arguments=("${kLeast[@]}") ;;
  rest) arguments=(tests/tool "${kLeast[@]/#/--ignore=}") ;;
  all) arguments=(tests/tool) ;;
esac
while (($# > 0)); do
  case $1 in
    --lib) library=$2; shift 2 ;;
    --fast) arguments+=(--ignore tests/tool/test_package.py); shift ;;
    tests/*) arguments=("$1"); shift ;;
    *) arguments+=("$1"); shift ;;
  esac
done
packages=(gcc g++ binutils libc6-dev git tmux less procps util-linux python3 python3-venv)
if runs rest; then
  packages+=(prometheus pipx chromium chromium-driver)
  command -v go >/dev/null || [[ -x /usr/local/go/bin/go ]] || packages+=(golang-go)
fi
tools/install-packages "${packages[@]}"
[[ -e $library && -e $(dirname "$library")/lanemalloc-launch &&
  -e $(dirname "$library")/lanemalloc-sim ]] ||
  tools/build release lanemalloc_tool >&2
python=$(tools/python-env)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Copies, so that a build meanwhile does not change them under running programs.
cp "$(dirname "$library")"/{liblanemalloc*,lanemalloc-{launch,sim}} "$work"
export LANEMALLOC_NATIVE=$work LANEMALLOC_TEST_PROGRAMS=$work/programs
unset LANEMALLOC_OPTIONS LD_PRELOAD
ulimit -c 0
status=0
"$python" -m pytest -p no:cacheprovider -q -rs --junitxml="$work/results.xml" "${arguments[@]}" \
  >"$work/log" 2>&1 || status=$?
grep -v '^E *$' "$work/log" || true
"$python" - "$work/results.xml" <<'END'
import sys
import xml.etree.ElementTree as tree

suites = tree.parse(sys.argv[1]).getroot().iter("testsuite")
total = failed = skipped = 0
for suite in suites:
    total += int(suite.get("tests", 0))
    failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    skipped += int(suite.get("skipped", 0))
print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped")
END
exit "$status"

# shellcheck shell=bash
# How much of a part runs, and what its script counts. Sourced by tests/run.sh and by the parts' own
# scripts.
# LANEMALLOC_TEST_DEPTH: least: what `make test` runs; rest: what that leaves out and `make
# test-long` runs; all (unless given): both. Each part's script decides what is its least.
# shellcheck disable=SC2034  # the sourcing script uses these

readonly kDepth=${LANEMALLOC_TEST_DEPTH:-all}
if [[ $kDepth != @(least|rest|all) ]]; then
  echo "LANEMALLOC_TEST_DEPTH must be least, rest or all, not '$kDepth'" >&2
  exit 2
fi

# runs least|rest: whether that half of the part runs.
runs() { [[ $kDepth == all || $kDepth == "$1" ]]; }

passed=0 failed=0 skipped=0
ok() { echo "ok $*"; passed=$((passed + 1)); }
fail() { echo "FAILED $*"; failed=$((failed + 1)); }
skip() { echo "skipped $*"; skipped=$((skipped + 1)); }

# check NAME COMMAND...: one test; of a command that fails it shows the end of what that said.
check() {
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then
    ok "$name"
  else
    fail "$name"
    tail -n 60 <<<"$said" | sed 's/^/    /'
  fi
}

# add_up COMMAND...: shows what a script of its own prints, and adds the counts of its last line.
add_up() {
  local line last='' status=0
  while IFS= read -r line; do
    [[ -z $last ]] || echo "$last"
    last=$line
  done < <("$@" 2>&1)
  wait $! || status=$?
  if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) \
      skipped=$((skipped + BASH_REMATCH[3]))
    [[ $status -eq 0 || ${BASH_REMATCH[2]} -gt 0 ]] || fail "$*: ended with status $status"
  else
    fail "$*: $last"
  fi
}

# Closes the script.
finish() {
  echo "$passed passed, $failed failed, $skipped skipped"
  exit $((failed > 0 || passed + skipped == 0))
}

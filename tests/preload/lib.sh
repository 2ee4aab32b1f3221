# Common part of tests/preload/programs/NAME.sh. Sourced by them; run.sh starts them and owns the
# directories.
# shellcheck shell=bash
#
# Given by run.sh:  NAME, LIB (the library), WITNESS (witness.so), SCALE (1, 2, …), VERDICT (file
# for the one line). The current directory is the program's own, empty and removed afterwards; files
# *.log are kept if the test fails.
#
# A program script ends with exactly one of ok, fail and skip. A command that fails unexpectedly is
# a failure, too.
#   plain CMD…     runs CMD with glibc's malloc: the truth to compare with
#   under CMD…     runs CMD with the library
#   daemon plain|under CMD…   either of them in the background
#   mapped P…      each program P ran under the library, and every process that ran called its
#                  malloc
#   mapped_pid PID the library is in that process's map (for processes made by fork)
set -Eeuo pipefail
: "${NAME:?}" "${LIB:?}" "${WITNESS:?}" "${SCALE:?}" "${VERDICT:?}"
export LC_ALL=C TZ=UTC HOME=$PWD
ulimit -c 0

PRELOADED=("LD_PRELOAD=$WITNESS:$LIB" "PRELOAD_WITNESS=$PWD/witness.log")
touch witness.log
chmod a+rw witness.log

# The first verdict counts, also one from a subshell.
verdict() {
  printf '%s\n' "$1" >>"$VERDICT"
  trap - ERR
  exit "$2"
}
fail() { verdict "FAILED $NAME: $*" 1; }
skip() { verdict "skipped $NAME: $*" 77; }

# unexpected STATUS LINE: names the line of the program script, and the signal if there was one.
unexpected() {
  local what="status $1"
  (($1 <= 128 || $1 > 192)) || what="SIG$(kill -l $(($1 - 128)))"
  fail "$what at line $2: $(sed -n "$2{s/^ *//;p}" "$0")"
}
trap \
  'status=$? line=${BASH_LINENO[-2]:-$LINENO}; ((BASH_SUBSHELL)) || unexpected "$status" "$line"' \
  ERR

# The last check of all: no process may have been given a complaint of the allocator or of the
# dynamic linker.
ok() {
  local complaints
  complaints=$(grep -hsE \
    '^lanemalloc: .*(\(0x|bad value|unknown option)|ld\.so: object .* cannot be preloaded' \
    -- *.log | head -1) || true
  [[ -z $complaints ]] || fail "$complaints"
  verdict "ok $NAME: $*" 0
}

plain() { env -u LD_PRELOAD "$@"; }
under() { env "${PRELOADED[@]}" "$@"; }

# daemon plain|under CMD…: the same in the background; $! is the process of CMD itself.
daemon() {
  local how=(-u LD_PRELOAD)
  [[ $1 == plain ]] || how=("${PRELOADED[@]}")
  shift
  (exec env "${how[@]}" "$@") &
}

mapped() {
  local program stranger
  stranger=$(awk -v lib="$LIB" '$NF != lib { print $2 ": " $3 " comes from " $NF; exit }' \
    witness.log)
  [[ -z $stranger ]] || fail "the library is not in use in $stranger"
  for program in "$@"; do
    awk -v program="$program" '$2 == program { found = 1 } END { exit !found }' witness.log ||
      fail "the library is not mapped in $program"
  done
}

mapped_pid() {
  grep -qF " $LIB" "/proc/$1/maps" ||
    fail "the library is not mapped in process $1 ($(tr '\0' ' ' <"/proc/$1/cmdline"))"
}

# same WHAT FILE FILE
same() {
  cmp "$2" "$3" >>compare.log 2>&1 ||
    fail "$1 differs from the run under glibc's malloc: $(tail -1 compare.log)"
}

# equal WHAT EXPECTED ACTUAL
# count PATTERN FILE: lines that match.
count() { grep -cE -- "$1" "$2" || true; }

equal() { [[ $2 == "$3" ]] || fail "$1 is '$3', not '$2'"; }

# wait_for SECONDS WHAT CMD…: waits until CMD succeeds.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || fail "no $what within the deadline"
    sleep 0.05
  done
}

children() { cat /proc/"$1"/task/*/children; }
gone() { ! kill -0 "$1" 2>/dev/null; }

# stopped WHAT PID: the child ends by itself, with status 0.
stopped() {
  wait_for 60 "end of $1" gone "$2"
  local status=0
  wait "$2" || status=$?
  equal "exit status of $1" 0 "$status"
}

free_port() {
  /usr/bin/python3 \
    -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# numbers COUNT: a repeatable stream of pseudo-random numbers, one a line.
numbers() {
  awk -v n="$1" \
    'BEGIN { x = 12345; for (i = 0; i < n; i++) { x = x * 16807 % 2147483647; print x } }'
}

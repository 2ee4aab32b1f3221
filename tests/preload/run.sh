#!/usr/bin/env bash
# Runs Debian's own programs with the library preloaded and checks their results. One script per
# program: programs/.
# Called by tests/run.sh and by hand. lib.sh is the part that the program scripts share; witness.c
# shows which malloc a process really calls; broken.c is the planted fault of the self-test.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/preload/run.sh [--lib PATH] [--only NAME,…] [--scale N] [--list] [--self-test]

  --lib PATH    the library to preload (default build/release/liblanemalloc.so, built if missing)
  --only NAMES  only these programs; `self-test` names the counted self-test
  --scale N     N times as much work (default $LANEMALLOC_TEST_SCALE or 1)
  --list        the programs and what they check
  --self-test   only the self-test, at full length: the checks see a broken malloc and a library
                that is not mapped

Logs of a failure stay in build/preload-logs/NAME/.
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
logs=$root/build/preload-logs
scale=${LANEMALLOC_TEST_SCALE:-1}
lib='' only='' self_test=0
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
# The part's least runs these, with the default entry of lanes.
readonly kLeast=(sqlite perl xz)

die() {
  printf 'tests/preload/run.sh: %s\n' "$*" >&2
  exit 2
}

program_names() {
  local file
  for file in "$here"/programs/*.sh; do basename "$file" .sh; done
}

# header NAME FIELD: the text behind "# FIELD: " in the script.
header() { sed -n "s/^# $2: //p" "$here/programs/$1.sh"; }

list() {
  local name
  for name in $(program_names); do printf '%-12s %s\n' "$name" "$(header "$name" checks)"; done
  printf '%-12s %s\n' self-test 'the checks see a broken malloc, and a library that is not mapped'
}

while (($#)); do
  case $1 in
    --lib | --only | --scale)
      (($# > 1)) || die "$1 needs a value"
      case $1 in
        --lib) lib=$2 ;;
        --only) only=$2 ;;
        --scale) scale=$2 ;;
      esac
      shift
      ;;
    --list) list && exit ;;
    --self-test) self_test=1 ;;
    --help | -h) usage && exit ;;
    *) usage >&2 && die "unknown argument '$1'" ;;
  esac
  shift
done
[[ $scale =~ ^[1-9][0-9]*$ ]] || die "scale must be a whole number from 1, not '$scale'"

known=" $(program_names | tr '\n' ' ')self-test "
selected=${only//,/ }
((self_test)) && selected=self-test
for name in ${selected:=$known}; do
  [[ $known == *" $name "* ]] || die "no program '$name'; there are:$known"
done
runs rest || selected=${kLeast[*]}

# Everybody can read the copies, also a server that runs as another user.
work=$(mktemp -d "${TMPDIR:-/tmp}/lanemalloc-preload.XXXXXX")
chmod 755 "$work"
session='' # process group of the running program script
cleanup() {
  [[ -z $session ]] || kill -KILL -- "-$session" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# wanted PATTERN: a command, or a file if it has a slash.
wanted() {
  if [[ $1 == */* ]]; then compgen -G "$1" >/dev/null; else command -v "$1" >/dev/null; fi
}

# Installs what the selected programs need ("# needs: COMMAND-OR-FILE=PACKAGE …") and is missing.
install_missing() {
  local name need packages=()
  for name in "$@"; do
    [[ $name == self-test ]] && continue
    for need in $(header "$name" needs); do
      wanted "${need%%=*}" || packages+=("${need#*=}")
    done
  done
  ((${#packages[@]})) || return 0
  mkdir -p "$logs"
  "$root/tools/install-packages" "${packages[@]}" >"$logs/install.log" 2>&1 ||
    printf 'could not install all of: %s (see %s)\n' "${packages[*]}" "$logs/install.log"
}

# The processes of the running program script.
session_processes() {
  local stat fields
  for stat in /proc/[0-9]*/stat; do
    fields=$(cat "$stat" 2>/dev/null) || continue
    read -r -a fields <<<"${fields##*) }"
    [[ ${fields[3]} != "$session" ]] || basename "${stat%/stat}"
  done
}

# Says where the processes of a program that hangs are.
report_hang() {
  local pid
  for pid in $(session_processes); do
    printf '%s %s: %s\n' "$pid" "$(cat "/proc/$pid/wchan")" "$(tr '\0' ' ' <"/proc/$pid/cmdline")"
  done
  command -v gdb >/dev/null || return 0
  for pid in $(session_processes); do
    grep -qsF "$work/lib/" "/proc/$pid/maps" || continue
    timeout 30 gdb -batch -nx -p "$pid" -ex 'thread apply all bt 30' 2>/dev/null </dev/null || true
  done
}

# run_program NAME LIB WATCHDOG [VARIABLE=VALUE…]: leaves the verdict line in $line; the logs in
# $directory.
run_program() {
  local name=$1 library=$2 deadline=$((SECONDS + $3)) status=0 need
  shift 3
  line=''
  directory=$work/$name
  rm -rf "$directory" "$work/verdict"
  mkdir -p "$directory"
  for need in $(header "$name" needs); do
    wanted "${need%%=*}" ||
      line="skipped $name: ${need%%=*} is missing and package ${need#*=} could not be installed"
  done
  [[ -z $line ]] || return 0
  (
    cd "$directory"
    exec env -u LD_PRELOAD NAME="$name" LIB="$library" WITNESS="$work/lib/witness.so" \
      SCALE="$scale" VERDICT="$work/verdict" PRELOAD_LIB="$here/lib.sh" "$@" \
      setsid bash "$here/programs/$name.sh"
  ) >"$work/script.log" 2>&1 </dev/null &
  session=$!
  while kill -0 "$session" 2>/dev/null; do
    if ((SECONDS >= deadline)); then
      report_hang >"$directory/hang.log" 2>&1 || true
      line="FAILED $name: not finished by the watchdog's deadline (stacks in hang.log)"
      kill -KILL -- "-$session"
      break
    fi
    sleep 0.1
  done
  wait "$session" 2>/dev/null || status=$?
  kill -KILL -- "-$session" 2>/dev/null || true
  session=''
  mv "$work/script.log" "$directory/script.log"
  if [[ -z $line && -s $work/verdict ]]; then line=$(head -1 "$work/verdict"); fi
  if [[ -z $line ]]; then
    line="FAILED $name: the script ended with status $status and without a verdict"
  fi
  return 0
}

keep_logs() {
  mkdir -p "$logs/$1"
  find "$directory" -name '*.log' -size -20M -exec cp -t "$logs/$1" {} +
}

count_line() {
  case $1 in
    ok\ *) ok "${1#ok }" ;;
    skipped\ *) skip "${1#skipped }" ;;
    *) fail "${1#FAILED }" ;;
  esac
}

# --- self-test: one verdict line, made of several runs that must go wrong and some that must not

# expect NAME ok|FAILED LIB [VARIABLE=VALUE…]: complains in $unexpected.
expect() {
  local name=$1 verdict=$2 library=$3
  shift 3
  run_program "$name" "$library" $((60 * scale)) "$@"
  [[ -z ${verbose-} ]] || printf '  %s [%s]\n' "${line/FAILED/seen:}" "$*"
  [[ $line == "$verdict "* ]] || unexpected+="; $name with ${library##*/} $* said: $line"
}

# The long self-test: more programs, each with faults that let it live long enough for a wrong
# result.
expect_more() {
  local name
  for name in coreutils gcc git node perl python xz; do
    expect "$name" ok "$broken" BROKEN_EVERY=0
  done
  expect perl FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=200000 BROKEN_MAX=200
  expect perl FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=20 BROKEN_MIN=20000
  expect python FAILED "$broken" BROKEN_MODE=overlap BROKEN_EVERY=1000
  expect python FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=20 BROKEN_MIN=10000
  expect node FAILED "$broken" BROKEN_MODE=overlap BROKEN_EVERY=1000
  expect node FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=20 BROKEN_MIN=10000
  expect gcc FAILED "$broken" BROKEN_MODE=overlap BROKEN_EVERY=1000
  expect gcc FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=5 BROKEN_MIN=1000
  expect git FAILED "$broken" BROKEN_MODE=overlap BROKEN_EVERY=1000
  expect git FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=20 BROKEN_MIN=1000
  expect xz FAILED "$broken" BROKEN_MODE=overlap BROKEN_EVERY=2 BROKEN_MIN=100000
}

run_self_test() {
  local verbose='' unexpected='' broken=$work/lib/broken.so
  ((self_test)) && verbose=1
  cc -O1 -shared -fPIC -o "$broken" "$here/broken.c"
  cc -shared -fPIC -o "$work/lib/empty.so" -x c /dev/null
  # The wrapper as such is harmless; each of its faults is seen.
  expect sqlite ok "$broken" BROKEN_EVERY=0
  expect sqlite FAILED "$broken" BROKEN_MODE=overlap BROKEN_EVERY=1000
  expect sqlite FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=50 BROKEN_MIN=3000
  expect coreutils FAILED "$broken" BROKEN_MODE=scribble BROKEN_EVERY=2 BROKEN_MIN=4096
  # A library without a malloc, and one that no process got.
  expect sqlite FAILED "$work/lib/empty.so"
  [[ $line == *'not in use'* ]] || unexpected+="; a library that does nothing was called: $line"
  expect sqlite FAILED "$broken" BROKEN_EVERY=0 WITNESS=/nowhere/witness.so
  [[ $line == *'not mapped'* ]] || unexpected+="; a process without the library was called: $line"
  ((self_test)) && expect_more
  if [[ -z $unexpected ]]; then
    line='ok self-test: planted faults (overlap, scribble) and a library not in use are seen'
  else
    line="FAILED self-test: ${unexpected#; }"
  fi
}
# ---

if [[ -z $lib ]]; then
  lib=$root/build/release/liblanemalloc.so
  [[ -e $lib ]] || make -C "$root" build >&2
fi
[[ -r $lib ]] || die "no library '$lib'"
# shellcheck disable=SC2086
install_missing $selected
command -v cc >/dev/null || die 'no C compiler (cc)'
mkdir "$work/lib"
lib=$(readlink -f "$lib")
cp "$lib" "$work/lib/"
lib=$work/lib/${lib##*/}
cc -O1 -Wall -shared -fPIC -o "$work/lib/witness.so" "$here/witness.c"
chmod -R a+rX "$work/lib"

# The entries of lanes that a program is run with: the default, and, if it has threads, what its
# "# lanes:" says; the long run: every entry.
entries_of() {
  local more half=rest
  more=$(header "$1" lanes)
  [[ -z $more || $scale == 1 ]] || more='shared:2 percpu auto'
  [[ " ${kLeast[*]} " != *" $1 "* ]] || half=least
  ! runs "$half" || echo default
  ! runs rest || echo "$more"
}

for name in $selected; do
  [[ $name == self-test ]] && entries=default || entries=$(entries_of "$name")
  for lanes in $entries; do
    started=$SECONDS
    if [[ $name == self-test ]]; then
      run_self_test
    elif [[ $lanes == default ]]; then
      run_program "$name" "$lib" $((180 * scale + 60))
    else
      run_program "$name" "$lib" $((180 * scale + 60)) LANEMALLOC_OPTIONS="lanes=$lanes"
      line="${line%%:*} [$lanes]:${line#*:}"
    fi
    rm -rf "${logs:?}/$name"
    [[ $line != FAILED* ]] || keep_logs "$name"
    count_line "$line"
    [[ -z ${LANEMALLOC_TEST_TIMES-} ]] || printf '  %d s\n' $((SECONDS - started))
    rm -rf "${work:?}/$name"
  done
done
finish

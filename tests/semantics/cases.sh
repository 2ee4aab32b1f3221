# shellcheck shell=bash
# What tests/semantics/run.sh and tests/borders/run.sh share: building a program, and running its
# cases, each in a process of its own. Sourced, with `work`, `library` and `flags` set; they set
# `mode` and what is wanted.
# shellcheck disable=SC2154  # variables of the sourcing script

readonly kAtOnce=3    # most cases wait more than they work
readonly kSeconds=300 # a case that hangs is ended; this is no bound on speed
programs=()           # name, and how it runs: preload or plain

# build NAME COMMAND...: in the background, two at a time.
build() {
  local name=$1
  shift
  while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done
  "$@" -o "$work/$name" 2>"$work/$name.log" &
}

# The last line that a case prints is ok, FAILED or skipped; here it gets the name. Prints all of it
# at once.
run_case() {  # NAME MODE CASE OPTIONS
  local name=$1 mode=$2 case=$3 status=0 variables=() label=${4:+ [$4]} out=$work/out.$BASHPID text
  [[ -z $4 ]] || variables=("LANEMALLOC_OPTIONS=$4")
  [[ $mode == plain || $library == glibc ]] || variables+=("LD_PRELOAD=$library")
  # The shell's own word about a signal goes to nobody.
  {
    timeout -s KILL "$kSeconds" env "${variables[@]}" "$work/$name" "$case" >"$out" 2>&1 \
      </dev/null || status=$?
  } 2>/dev/null
  case $status in
    0) text="ok $name/$case$label" ;;
    77) text="skipped $name/$case$label: $(sed -n 's/^skipped //p' "$out" | tail -1)" ;;
    *)
      text=$(head -c 8000 "$out" | tr -d '\0' | grep -av "^FAILED $case$" | sed 's/^/  /' || true)
      text=${text:+$text$'\n'}"FAILED $name/$case$label (status $status)"
      ;;
  esac
  rm -f "$out"
  printf '%s\n' "$text" | tee -a "$work/results"
}

start_case() {
  while (($(jobs -rp | wc -l) >= kAtOnce)); do wait -n || true; done
  run_case "$@" &
}

# cases_of NAME: sets cases; false if it was not built.
cases_of() {
  if ! cases=$([[ -x $work/$1 ]] && "$work/$1" --list 2>/dev/null); then
    head -40 "$work/$1.log"
    echo "FAILED $1 (does not build)" | tee -a "$work/results"
    return 1
  fi
}

# Waits for the cases and adds their results up.
count_cases() {
  wait
  touch "$work/results"
  passed=$((passed + $(grep -ac '^ok ' "$work/results" || true)))
  failed=$((failed + $(grep -ac '^FAILED ' "$work/results" || true)))
  skipped=$((skipped + $(grep -ac '^skipped ' "$work/results" || true)))
}

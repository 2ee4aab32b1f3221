#!/usr/bin/env bash
# Builds the server, runs wrk against it with arenas and with malloc for each piece, in turns,
# checks every answer, and shows requests a second beside what the allocator has counted of
# contention. Called by hand, and by tests/examples/run.sh.
# Usage: examples/http-parser/run.sh [SECONDS [ROUNDS]]    seconds of a run, 3; rounds, 3.
# THREADS=n: of the server, 4.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
readonly kSeconds=${1:-3} kRounds=${2:-3} kThreads=${THREADS:-4}

"$root/tools/install-packages" g++ libc6-dev wrk
library=$root/build/release/liblanemalloc.so
[[ -e $library ]] || "$root/tools/build" release
work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
g++ -std=c++17 -O2 -g -Wall -Wextra -Werror -pthread -I"$root/include" server.cpp "$library" \
  -Wl,-rpath,"${library%/*}" -o "$work/server"

fail() {
  echo "FAILED: $*"
  exit 1
}

start() {
  : >"$work/out"
  "$work/server" "$1" "$kThreads" >"$work/out" 2>"$work/figures" &
  server=$!
  while [[ ! -s $work/out ]]; do
    kill -0 "$server" 2>/dev/null || fail "the server does not start: $(cat "$work/figures")"
    sleep 0.01
  done
  port=$(head -n 1 "$work/out")
}

stop() {
  kill -TERM "$server"
  wait "$server" || fail "the server ended with status $?: $(cat "$work/figures")"
  server=
}

# answers STATUS REQUEST: one request on a connection of its own, as printf has it.
answers() {
  local line
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  # shellcheck disable=SC2059 # the request is a format
  printf "$2" >&3
  IFS= read -r line <&3 || line=nothing
  exec 3>&-
  [[ $line == "HTTP/1.1 $1 "* ]] || fail "'$2' is answered by '$line', not by $1"
}

check_answers() {
  answers 200 'GET /sum?a=1&b=2 HTTP/1.1\r\nHost: x\r\n\r\n'
  answers 200 'GET /s%%75m?a=%%31&b=+2&c HTTP/1.0\r\n\r\n'
  answers 404 'GET / HTTP/1.1\r\n\r\n'
  answers 404 'PUT /sum?a=1&b=2 HTTP/1.1\r\n\r\n'
  answers 400 'GET\r\n\r\n'
  answers 400 'GET sum HTTP/1.1\r\n\r\n'
  answers 400 'GET /%%4 HTTP/1.1\r\n\r\n'
  answers 400 'GET /sum?%%zz=1 HTTP/1.1\r\n\r\n'
  answers 400 'GET / HTTP/1.1\r\nno colon\r\n\r\n'
  answers 400 'GET / HTTP/1.1\r\nbad name: 1\r\n\r\n'
  answers 501 'GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello'
  answers 505 'GET / HTTP/2.0\r\n\r\n'
  answers 431 "GET / HTTP/1.1\r\nX: $(head -c 70000 /dev/zero | tr '\0' x)\r\n\r\n"
}

figure() { sed -nE "s/^lanemalloc: $1: ([0-9]+)$/\1/p" "$work/figures"; }
value() { sed -nE "s/.*\<$1=([0-9.]+).*/\1/p" <<<"$result"; }

# Sets result to wrk's line.
measure() {
  result=$(wrk --latency -t 2 -c 32 -d "${kSeconds}s" -s check.lua "http://127.0.0.1:$port" |
    grep '^result ') || fail "wrk against $1"
  [[ $(value wrong) == 0 && $(value errors) == 0 && $(value right) -gt 0 ]] || fail "$1: $result"
}

printf '%-8s %12s %10s %10s %14s %14s %12s %12s\n' memory requests/s p99 allocations/req \
  'failed entries' 'lane waits' 'region waits' 'remote frees'
for ((round = 0; round < kRounds; round++)); do
  for memory in arena malloc; do
    start "$memory"
    ((round > 0)) || check_answers
    measure "$memory"
    stop
    answered=$(sed -n 's/^answered //p' "$work/out")
    ((answered >= $(value right))) || fail "$memory: $answered answered, $(value right) checked"
    printf '%-8s %12.0f %7d us %15.2f %14s %14s %12s %12s\n' "$memory" \
      "$(awk "BEGIN { print $(value right) / $(value seconds) }")" "$(value p99_us)" \
      "$(awk "BEGIN { print $(figure allocations) / $answered }")" \
      "$(figure 'failed lane entries')" "$(figure 'waits for a lane')" \
      "$(figure 'region lock waits')" "$(figure 'remote frees')"
  done
done
echo 'every answer was right'

#!/usr/bin/env bash
# checks: redis-server: benchmark load, BGSAVE (fork) during writes, reload, restart: same DEBUG
# DIGEST of the data set
# lanes: shared:2
# needs: redis-server=redis-server redis-benchmark=redis-tools awk=mawk
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

# A data set of all types, with overwrites and deletions, and how redis counts it.
numbers $((30000 * SCALE)) | awk '{
  k = $1 % 3000; big = sprintf("%" ($1 % 700 + 1) "s", $1)
  print "SET str:" k " \"" big "\""; print "APPEND str:" ($1 % 500) " \"" $1 "\""
  print "RPUSH list:" k % 50 " \"" $1 "\" \"" big "\""; if (NR % 5 == 0) print "LPOP list:" k % 50
  print "HSET hash:" k % 100 " field" $1 % 777 " \"" big "\""
  print "ZADD zset:" k % 20 " " $1 % 10007 " member" $1 % 4001
  print "SADD set:" k % 30 " " $1; if (NR % 7 == 0) print "UNLINK str:" ($1 % 2500)
  if (NR % 100 == 0) print "XADD stream:" k % 5 " " NR "-1 a \"" big "\""
  if (NR % 3000 == 0) print "DEL hash:" k % 100 " list:" k % 50 }' >commands
grep -v XADD commands >writes # can be loaded again

cli() { plain redis-cli -s "$PWD/socket" "$@"; }
ping() { [[ $(cli ping) == PONG ]]; }
digest() { cli debug digest; }
field() { cli info "$1" | tr -d '\r' | sed -n "s/^$2://p"; }
saved() { [[ $(field persistence rdb_bgsave_in_progress) == 0 ]]; }
forked() { [[ $(field persistence rdb_bgsave_in_progress) == 1 ]]; }

# start plain|under: the server with what dump.rdb holds.
server=
start() {
  daemon "$1" redis-server --port 0 --unixsocket "$PWD/socket" --dir "$PWD" --save '' \
    --enable-debug-command yes --io-threads 2 --io-threads-do-reads yes \
    --lazyfree-lazy-user-del yes --daemonize no >>"$1-server.log" 2>&1
  server=$!
  wait_for 60 'answer of redis-server' ping
}
stop() {
  cli shutdown "$@" >/dev/null 2>&1 || true
  stopped redis-server "$server"
}
load() { cli --pipe <"$1" >load.log 2>&1 || fail "loading: $(tail -1 load.log)"; }

start plain
load commands
truth=$(digest)
size=$(cli dbsize)
stop nosave

start under
mapped_pid "$server"
load commands
equal 'DEBUG DIGEST after loading' "$truth" "$(digest)"
n=$((60000 * SCALE))
under redis-benchmark -s "$PWD/socket" --threads 2 -q -c 20 -P 8 -n "$n" -r 5000 -d 200 \
  -t set,get,lpush,lpop,sadd,zadd,mset >benchmark.log 2>&1
equal 'kinds of requests that redis-benchmark finished' 7 \
  "$(tr '\r' '\n' <benchmark.log | awk '/requests per second, p50/ { n++ } END { print n }')"
equal 'error replies' 0 "$(field stats total_error_replies)"

# The snapshot of a fork must be that of the moment of the fork, whatever the parent does meanwhile.
before=$(digest)
cli config set rdb-key-save-delay 100 >/dev/null
cli bgsave >/dev/null
wait_for 30 'child of BGSAVE' forked
mapped_pid "$(children "$server" | cut -d' ' -f1)"
load writes
under redis-benchmark -s "$PWD/socket" -q -c 10 -P 4 -n 5000 -r 5000 -d 300 -t set,lpush \
  >benchmark2.log 2>&1
cli config set rdb-key-save-delay 0 >/dev/null
wait_for 100 'end of BGSAVE' saved
equal 'status of BGSAVE' ok "$(field persistence rdb_last_bgsave_status)"
changed=$(digest)
[[ $changed != "$before" ]] || fail 'the writes during BGSAVE changed nothing'
cp dump.rdb fork.rdb
cli debug reload >/dev/null
equal 'DEBUG DIGEST after DEBUG RELOAD' "$changed" "$(digest)"
stop nosave
mv fork.rdb dump.rdb
start under
equal 'DEBUG DIGEST of the restarted server' "$before" "$(digest)"
cli flushall async >/dev/null
load commands
equal 'DBSIZE after FLUSHALL ASYNC and loading' "$size" "$(cli dbsize)"
equal 'DEBUG DIGEST after FLUSHALL ASYNC and loading' "$truth" "$(digest)"
stop nosave
mapped redis-server redis-benchmark
ok "digests of $size keys are the same; BGSAVE keeps the moment of the fork;" \
  "$((7 * n)) benchmark requests without an error"

#!/usr/bin/env bash
# checks: PostgreSQL: initdb, pgbench, parallel and compiled queries, consistency of pgbench's
# tables, dump, crash restart
# needs: /usr/lib/postgresql/*/bin/postgres=postgresql-15 setpriv=util-linux
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

bin=$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1)
as_user=()
if ((EUID == 0)); then
  # PostgreSQL refuses to run as root.
  user=nobody
  ! id postgres >/dev/null 2>&1 || user=postgres
  as_user=(setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups)
  chown "$user" .
fi

pg() {
  "${as_user[@]}" env -u LD_PRELOAD PATH="$bin:$PATH" PGHOST="$PWD/run" PGDATABASE=postgres \
    PGUSER=owner "$@"
}
pg_under() { pg "${PRELOADED[@]}" "$@"; }
sql() { pg_under psql -XqAt -v ON_ERROR_STOP=1 "$@" 2>>psql.log; }
ready() { sql -c 'select 1'; }
start() {
  (exec "${as_user[@]}" env "${PRELOADED[@]}" "$bin/postgres" -D "$PWD/data" >>server.log 2>&1) &
  server=$!
  wait_for 60 'answer of postgres' ready
  mapped_pid "$server"
}
stop() {
  kill -"$1" "$server"
  stopped postgres "$server"
}

pg mkdir -m 700 run
pg_under initdb -D "$PWD/data" -U owner -A trust -E UTF8 --no-locale --no-sync >initdb.log 2>&1
pg tee -a data/postgresql.conf >/dev/null <<END
listen_addresses = ''
unix_socket_directories = '$PWD/run'
fsync = off
shared_buffers = 32MB
work_mem = 2MB
max_parallel_workers_per_gather = 2
min_parallel_table_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
END
start

# pgbench: a bank. Every history row must be in all the balances, and none may be lost.
transactions=$((400 * SCALE))
consistent() {
  equal 'sums of the balances of accounts, tellers, branches and history that differ' 1 "$(sql -c '
    select count(distinct s) from (select sum(abalance) s from pgbench_accounts
      union all select sum(tbalance) from pgbench_tellers
      union all select sum(bbalance) from pgbench_branches
      union all select sum(delta) from pgbench_history) t')"
  equal 'accounts whose history differs' 0 "$(sql -c '
    select count(*) from pgbench_accounts a
      left join (select aid, sum(delta) d from pgbench_history group by aid) h using (aid)
      where a.abalance <> coalesce(h.d, 0)')"
}
pg_under pgbench -i -q -s 3 --foreign-keys >pgbench-init.log 2>&1
pg_under pgbench -n -c 6 -j 2 -t "$transactions" >pgbench.log 2>&1
pg_under pgbench -n -c 4 -j 2 -t $((transactions / 2)) -M prepared -C >>pgbench.log 2>&1
equal 'rows of pgbench_history' $((6 * transactions + 4 * (transactions / 2))) \
  "$(sql -c 'select count(*) from pgbench_history')"
consistent

# Queries with a known truth: sorts and hashes that spill, parallel workers, code compiled by LLVM,
# plpgsql, regexps, json.
n=$((200000 * SCALE))
sql >queries.log <<END
create table t as select i, (i::bigint * 7919) % 100003 as k, repeat('x', i % 200) as s,
  md5(i::text) as m from generate_series(1, $n) i;
create index on t (m);
create index on t using gin (to_tsvector('simple', m || ' ' || k));
analyze t;
END
equal 'a sorted, spilled window query' "$n" \
  "$(sql -c 'select count(*) from (select i, row_number() over (order by m, s) from t) q')"
equal 'a hash join' "$n" "$(sql -c 'select count(*) from t a join t b on a.m = b.m')"
equal 'a parallel sum' "$((n * (n + 1) / 2))" "$(sql -c 'select sum(i) from t')"
equal 'a sum without parallel workers and one with compiled code' 1 "$(sql <<'END'
create temp table r(s text);
set max_parallel_workers_per_gather = 0;
insert into r select md5(string_agg(m || length(s), ',' order by i)) from t;
set jit_above_cost = 0; set jit_optimize_above_cost = 0; set jit_inline_above_cost = 0;
insert into r select md5(string_agg(m || length(s), ',' order by i)) from t
  where i + 1 > i and length(s) < 1000;
select count(distinct s) from r;
END
)"
equal 'a plpgsql loop' 20000 "$(sql <<'END'
create function work(n int) returns bigint language plpgsql as $$
declare a text[] := '{}'; j jsonb := '{}'; total bigint := 0;
begin
  for i in 1..n loop
    begin
      if i % 10 = 0 then raise exception 'expected'; end if;
      a := a || repeat('y', i % 30); total := total + 10;
      if i % 100 = 1 then j := j || jsonb_build_object('k' || i, a[i % 50 + 1]); a := '{}'; end if;
    exception when others then
      total := total + 10;
      perform regexp_replace(m, '([a-f]+)(\d+)', '\2\1', 'g') from t where t.i < 3;
    end;
  end loop;
  return total;
end $$;
select work(2000);
END
)"

# A dump, restored into a second database, is the same dump.
pg_under pg_dump >first.sql 2>dump.log
pg_under createdb second
pg_under psql -Xq -v ON_ERROR_STOP=1 -d second <first.sql >restore.log 2>&1
pg_under pg_dump -d second >second.sql 2>>dump.log
for name in first second; do grep -v '^\\.*restrict ' $name.sql | sort >$name.rows; done
same 'the dump of the restored dump' first.rows second.rows

# A backend that is killed makes the server restart all of its processes; nothing committed is lost.
pid=$(sql -c 'select pid from pg_stat_activity where backend_type = '"'checkpointer'")
mapped_pid "$pid"
expected=$(count 'all server processes terminated' server.log)
kill -KILL "$pid"
restarted() { (($(count 'all server processes terminated' server.log) > expected)); }
wait_for 60 'restart after a crash' restarted
wait_for 60 'answer after a crash' ready
consistent
stop INT
start
consistent
stop TERM
equal 'crashes in the server log' 1 "$(count 'terminated by signal' server.log)"
! grep -E 'PANIC|TRAP|free\(|corrupt' server.log >crash.log || fail "$(head -1 crash.log)"
mapped initdb postgres pgbench psql pg_dump
ok "consistent after $((8 * transactions)) transactions, a crash and a restart;" \
  "queries (parallel, compiled) and dumps give the truth"

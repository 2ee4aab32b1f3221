#!/usr/bin/env bash
# Whether what lanemalloc says of itself is true. Called by tests/run.sh, and by hand.
#   run.sh [--lib PATH] [--only NAME] [--scale N]
# In this order: an independent counter in front of the library, under real programs (counter.c);
# what the library says inside, case by case, with each entry of lanes (figures.c, settings.c,
# samples.c, contention.c); what is seen from outside (check.py); the cases of tests/semantics with
# samples. --only: what has NAME in its name.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
library=$root/build/release/liblanemalloc.so
scale=${LANEMALLOC_TEST_SCALE:-1}
only=''
while (($#)); do
  case $1 in
    --lib) library=$2 ;;
    --only) only=$2 ;;
    --scale) scale=$2 ;;
    *) echo "usage: $0 [--lib PATH] [--only NAME] [--scale N]" >&2 && exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
# The part's least: these programs, what the library says inside with the default entry, and
# check.py's LEAST.
readonly kLeast=(churn python3 perl)
readonly kPrograms=(churn python3 perl gcc git sqlite3 redis nginx node postgres sort xz tar)
work=$(mktemp -d)
chmod 755 "$work"
background=()
cleanup() {
  local process
  for process in "${background[@]}"; do kill -KILL "$process" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
ulimit -c 0
unset LANEMALLOC_OPTIONS LD_PRELOAD

# --- What is needed. What cannot be had is skipped, by name, where it is used.

"$root/tools/install-packages" gcc libc6-dev python3 python3-venv binutils
packages=(perl)
! runs rest || packages+=(git sqlite3 xz-utils redis-server redis-tools nginx-light curl nodejs
  postgresql-15 valgrind gdb bpftrace prometheus)
for package in "${packages[@]}"; do
  "$root/tools/install-packages" "$package" >>"$work/install.log" 2>&1 || true
done
[[ -e $library ]] || make -C "$root" build >&2
library=$(realpath "$library")
python=$("$root/tools/python-env" prometheus_client)

build() {  # NAME SOURCE ARGUMENT...
  local name=$1 source=$2
  shift 2
  cc -std=gnu11 -O1 -g -Wall -Wextra -Werror -Wno-free-nonheap-object -Wno-use-after-free \
    -fno-allocation-dce -fno-builtin -pthread -D_GNU_SOURCE -I"$root/include" -o "$work/$name" \
    "$source" "$@" -lm
}
shared=("$library" "-Wl,-rpath,$(dirname "$library")")
archive=${library%.so*}.a prefixed=${library%.so*}_prefixed.a
build counter.so "$here/counter.c" -shared -fPIC
for name in figures settings samples contention told; do
  build "$name" "$here/$name.c" "${shared[@]}"
done
build told_static "$here/told.c" -s "$archive"
build told_static_exe "$here/told.c" -s -static -no-pie "$archive"
build told_static_pie "$here/told.c" -s -static-pie "$archive"
build told_prefixed "$here/told.c" -s -DPREFIXED "$prefixed"
cc -O2 -pthread -o "$work/pairs" "$root/bench/micro/pairs.c" "${shared[@]}"
# Everybody can read it, also a server that runs as another user.
cp "$library" "$work/under-test.so"
chmod a+rX "$work"/*

wanted() { [[ -z $only || $1 == *"$only"* ]]; }

# --- The counter under real programs. Each function runs its program with `under`; $folder is its
# own.

under() {
  env "LD_PRELOAD=$work/counter.so:$work/under-test.so" "COUNTER_FILE=$folder/lines" \
    ${options:+"LANEMALLOC_OPTIONS=$options"} "$@"
}
serve() {  # the same in the background
  (cd "$folder" && exec env "LD_PRELOAD=$work/counter.so:$work/under-test.so" \
    "COUNTER_FILE=$folder/lines" ${options:+"LANEMALLOC_OPTIONS=$options"} "$@") \
    >>"$folder/server.log" 2>&1 &
  background+=($!)
}
wait_for() {  # CONDITION...
  local deadline=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || return 1
    sleep 0.05
  done
}
numbers() {
  awk -v n="$1" \
    'BEGIN { x = 12345; for (i = 0; i < n; i++) { x = x * 16807 % 2147483647; print x } }'
}
free_port() {
  /usr/bin/python3 \
    -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

run_churn() { under "$work/told" churn; }
run_python3() {
  under /usr/bin/python3 -c '
import concurrent.futures, json, os, subprocess, threading, re
data = json.loads(json.dumps({str(i): [i] * (i % 50) for i in range(20000)}))
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    def work(i):
        return len(bytearray(i % 5000 * 100)) + len(re.findall("1", json.dumps(data[str(i)])))
    sums = list(pool.map(work, range(5000)))
if os.fork() == 0:
    del data
    os._exit(0)
os.wait()
subprocess.run(["/bin/true"], check=True)'
}
# shellcheck disable=SC2016  # perl's variables
run_perl() {
  under perl -e 'my %h; $h{$_ % 7000} .= "x" x ($_ % 90) for 1 .. 200000;
    my @s = sort { $h{$a} cmp $h{$b} } keys %h; fork // die; wait; exit 0'
}
run_gcc() {
  under gcc -O2 -fno-builtin -w -I"$root/include" -c "$here/counter.c" -o "$folder/counter.o"
}
run_git() {
  under git init -q "$folder/repository"
  cd "$folder/repository"
  for i in 1 2 3; do
    numbers 20000 | split -l 50 - "part$i"
    under git add . && under git -c user.name=a -c user.email=b@c commit -qm "Add $i"
  done
  under git gc -q && under git log --stat -p | cksum && under git fsck --full
}
run_sqlite3() {
  under sqlite3 "$folder/base" 'create table t(a, b);
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
    insert into t select i, printf("%d:%s", i * 7919 % 100003, hex(zeroblob(i % 60))) from n;
    create index j on t(b); select count(*), sum(length(b)) from t where b > "5";
    select b from t order by b desc limit 5; vacuum;'
}
run_redis() {
  serve redis-server --port 0 --unixsocket "$folder/socket" --save '' --dir "$folder" --io-threads \
    2 --io-threads-do-reads yes
  local server=$!
  wait_for redis-cli -s "$folder/socket" ping
  under redis-benchmark -s "$folder/socket" --threads 2 -q -c 20 -P 8 -n 20000 -r 3000 -d 300 \
    -t set,get,lpush,sadd
  redis-cli -s "$folder/socket" bgsave
  wait_for test -s "$folder/dump.rdb"
  redis-cli -s "$folder/socket" shutdown nosave
  wait "$server"
}
run_nginx() {
  local port i user=''
  port=$(free_port)
  ((EUID)) || user='user nobody nogroup;'
  mkdir "$folder/tmp" && chmod -R a+rwX "$folder"
  numbers 30000 >"$folder/big.txt"
  cat >"$folder/nginx.conf" <<END
$user worker_processes 2; daemon off; pid $folder/nginx.pid; error_log $folder/error.log;
env COUNTER_FILE; env LD_PRELOAD; env LANEMALLOC_OPTIONS;
events { worker_connections 128; }
http {
  access_log off; client_body_temp_path $folder/tmp/b; proxy_temp_path $folder/tmp/p;
  fastcgi_temp_path $folder/tmp/f;
  uwsgi_temp_path $folder/tmp/u; scgi_temp_path $folder/tmp/s;
  server { listen 127.0.0.1:$port; root $folder;
    location / { gzip on; gzip_types text/plain; default_type text/plain; }
    location /again/ { proxy_pass http://127.0.0.1:$port/; proxy_http_version 1.1; } }
}
END
  serve "$(PATH=$PATH:/usr/sbin command -v nginx)" -p "$folder" -e "$folder/error.log" \
    -c "$folder/nginx.conf"
  local server=$!
  wait_for curl -sf --noproxy '*' "http://127.0.0.1:$port/nginx.conf"
  for i in 1 2 3 4 5 6 7 8; do
    under curl -sf --noproxy '*' --compressed \
      -Z "http://127.0.0.1:$port/"{,again/}"big.txt?[1-25]" -o /dev/null
  done
  kill -QUIT "$server"
  wait "$server"
}
run_node() {
  under node -e 'const { Worker, isMainThread } = require("worker_threads"), zlib = require("zlib");
    let kept = []; for (let i = 0; i < 30000; i++) kept[i % 500] = Buffer.alloc(i % 9000, i);
    for (let i = 0; i < 20; i++) zlib.gunzipSync(zlib.gzipSync(Buffer.alloc(300000, i)));
    const fill = "let a = []; for (let i = 0; i < 20000; i++) a.push(Buffer.alloc(i % 500) + \"\")";
    if (isMainThread) for (let i = 0; i < 2; i++) new Worker(fill, { eval: true });'
}
run_postgres() {
  local bin as=() server
  bin=$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1)
  if ((EUID == 0)); then
    as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
    chown -R postgres "$folder"
  fi
  cd "$folder"
  pg() { "${as[@]}" env PATH="$bin:$PATH" PGHOST="$folder" PGDATABASE=postgres PGUSER=owner "$@"; }
  pg initdb -D "$folder/data" -U owner -A trust --no-locale --no-sync
  printf \
    "listen_addresses = ''\nunix_socket_directories = '%s'\nfsync = off\nshared_buffers = 16MB\n" \
    "$folder" >>"$folder/data/postgresql.conf"
  serve "${as[@]}" "$bin/postgres" -D "$folder/data"
  server=$!
  wait_for pg psql -c 'select 1'
  pg env "LD_PRELOAD=$work/counter.so:$work/under-test.so" "COUNTER_FILE=$folder/lines" \
    psql -qc 'create table t as select i, md5(i::text) m from generate_series(1, 40000) i;
      create index on t(m); select count(*) from t a join t b using (m);
      select count(*) from (select m, row_number() over (order by m) from t) q;'
  pg pgbench -i -q && pg pgbench -n -c 4 -j 2 -t 100
  kill -INT "$server"
  wait "$server"
}
run_sort() {
  numbers 200000 | under sort --parallel=4 -S 4M -T "$folder" | under sort -n | tail -n 1
}
run_xz() { under xz -T2 -2 -k -c "$library" | under xz -T2 -d | cmp - "$library"; }
run_tar() {
  under tar -C "$root" -cf "$folder/all.tar" src tests docs && under tar -tf "$folder/all.tar" |
    wc -l
}

# PROGRAM: what it needs | the processes that must have left a line.
declare -A needs=([churn]='cc|told' [python3]='python3|python3' [perl]='perl|perl'
  [gcc]='gcc|gcc cc1 as' [git]='git|git' [sqlite3]='sqlite3|sqlite3'
  [redis]='redis-server redis-benchmark|redis-server redis-benchmark'
  [nginx]='/usr/sbin/nginx curl|nginx curl' [node]='node|node'
  [postgres]='setpriv /usr/lib/postgresql/15/bin/postgres|postgres psql' [sort]='sort|sort'
  [xz]='xz|xz' [tar]='tar|tar')

# count PROGRAM OPTIONS [FAULT]: the output of the comparison; status 0 if all is equal.
count() {
  local program=$1 options=$2 status=0
  folder=$work/run
  rm -rf "$folder"
  mkdir "$folder"
  : >"$folder/lines"
  chmod a+rwX "$folder" "$folder/lines"
  [[ -z ${3-} ]] || export COUNTER_FAULT=$3
  (set -e && cd "$folder" && "run_$program") >"$folder/out" 2>&1 </dev/null || status=$?
  unset COUNTER_FAULT
  if ((status != 0)); then
    echo "$program ended with status $status:" \
      "$(tail -n 2 "$folder/out" "$folder"/server.log 2>/dev/null | tr '\n' ' ')"
    return 1
  fi
  # shellcheck disable=SC2086 # words
  "$python" "$here/check.py" counted "$folder/lines" ${needs[$program]#*|}
}
count_equal() {
  local program=$1 options=$2 name="counter/$1${2:+ [$2]}" need said
  wanted "$name" || return 0
  for need in ${needs[$program]%%|*}; do
    command -v "$need" >/dev/null || { skip "$name: no $need"; return 0; }
  done
  if said=$(count "$program" "$options"); then ok "$name: $said"; else fail "$name: $said"; fi
}
for program in "${kPrograms[@]}"; do
  [[ " ${kLeast[*]} " == *" $program "* ]] && half=least || half=rest
  ! runs "$half" || count_equal "$program" ''
done
more=()
! runs rest || more=(lanes=percpu lanes=shared:2 sample=64k "lanes=percpu,sample=16k"
  "lanes=shared:2,sample=16k" checked=1)
for options in "${more[@]}"; do
  for program in churn python3 redis node xz; do
    [[ $program == @(churn|redis) || $options == @(lanes=percpu|lanes=shared:2|sample=64k) ||
      $scale -gt 1 ]] || continue
    count_equal "$program" "$options"
  done
done
if runs rest && wanted counter/self-test; then
  if said=$(count perl '' 5000); then
    fail "counter/self-test: a free that was counted twice is not seen: $said"
  elif [[ $said == *'frees: '*'the library says'* ]]; then
    ok 'counter/self-test: a free that was counted twice is seen'
  else
    fail "counter/self-test: it fails for another reason: $said"
  fi
fi

# --- Inside, case by case.

run_case() {  # PROGRAM CASE OPTIONS
  local name="$1/$2${3:+ [$3]}" status=0
  wanted "$name" || return 0
  timeout -s KILL 200 env ${3:+"LANEMALLOC_OPTIONS=$3"} "$work/$1" "$2" >"$work/out" 2>&1 \
    </dev/null || status=$?
  case $status in
    0) ok "$name" ;;
    77) skip "$name: $(sed -n 's/^skipped //p' "$work/out" | tail -n 1)" ;;
    *)
      head -c 4000 "$work/out" | sed 's/^/  | /'
      fail "$name (status $status)"
      ;;
  esac
}
entries=()
! runs least || entries+=('')
! runs rest || entries+=(lanes=shared:2 lanes=percpu)
for program in figures settings samples contention; do
  for case in $("$work/$program" --list); do
    for options in "${entries[@]}"; do
      # The others choose their entries.
      [[ -z $options || $program == @(figures|samples) ]] || continue
      run_case "$program" "$case" "$options"
    done
  done
done
if runs rest; then
  for case in $("$work/figures" --list); do run_case figures "$case" sample=4k; done
fi

# --- From outside.

add_up "$python" "$here/check.py" ${only:+--only "$only"} "$work" "$library"

# --- Programs behave the same with samples.

if runs rest && wanted semantics; then
  status=0
  bash "$root/tests/semantics/run.sh" --lib "$library" --options sample=4k \
    >"$work/semantics" 2>&1 || status=$?
  line=$(tail -n 1 "$work/semantics")
  if ((status == 0)); then
    ok "semantics [sample=4k]: $line"
  else
    grep '^FAILED' "$work/semantics" | head
    fail "semantics [sample=4k]: $line"
  fi
fi

finish

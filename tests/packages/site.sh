#!/usr/bin/env bash
# The site of docs/: it is built, no link leads nowhere, nothing is loaded from elsewhere
# (tools/make-site says so), and a browser finds a page by a word. A page with a wrong link is
# found.
# Called by: run.sh, and by hand.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/part.sh
source "$root/tests/part.sh"
"$root/tools/install-packages" python3 python3-venv doxygen chromium \
  chromium-driver >&2
work=$(mktemp -d)
trap '[[ -z ${server-} ]] || kill "$server"; rm -rf "$work"' EXIT
site=$root/build/docs/site

check 'the site is built, and its links lead somewhere' "$root/tools/make-site"
[[ $failed -eq 0 ]] || finish
check 'the reference of the headers is in it' grep -ql lane_pool_create "$site"/headers/*.html

python3 -u -m http.server --bind 127.0.0.1 --directory "$site" 0 >"$work/log" 2>/dev/null &
server=$!
until port=$(grep -oP '(?<=port )\d+' "$work/log"); do kill -0 "$server"; done
python=$("$root/tools/python-env")
for found in 'siglongjmp limits.html' 'manylinux install.html'; do
  check "a browser searches: ${found/ / and finds }" "$python" "$root/tests/packages/search.py" \
    "http://127.0.0.1:$port/index.html" "${found% *}" "${found#* }"
done

# The checker itself: a page that links to nothing.
cp "$site/limits.html" "$work/kept.html"
sed -i '0,/<\/article>/s,</article>,<a href="nowhere.html">x</a></article>,' "$site/limits.html"
found=$(python3 "$root/tools/make-site" --check-only 2>&1) && status=0 || status=$?
cp "$work/kept.html" "$site/limits.html"
if [[ $status -ne 0 && $found == *'limits.html links to nowhere.html'* ]]; then
  ok 'a link that leads nowhere is found'
else
  fail "a link that leads nowhere is found: $found"
fi
finish

#!/usr/bin/env bash
# checks: git: fast-import of many commits, clone, repack with threads, gc, fsck, log, blame: same
# hashes and bytes
# lanes: shared:2
# needs: git=git awk=mawk
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_COUNT=4 GIT_CONFIG_KEY_0=gc.auto GIT_CONFIG_VALUE_0=0 \
  GIT_CONFIG_KEY_1=pack.threads GIT_CONFIG_VALUE_1=2 GIT_CONFIG_KEY_2=gc.autoDetach \
  GIT_CONFIG_VALUE_2=false GIT_CONFIG_KEY_3=init.defaultBranch GIT_CONFIG_VALUE_3=main

# A history: each commit rewrites a file out of 200 and now and then merges or tags.
awk -v commits=$((1500 * SCALE)) 'BEGIN {
  x = 99
  for (c = 1; c <= commits; c++) {
    x = x * 16807 % 2147483647
    f = x % 200; text = ""; lines[f] += 20
    for (l = 0; l < lines[f] % 400 + 5; l++)
      text = text "file " f " line " l (l % 17 == c % 17 ? " changed by " c : "") "\n"
    message = "Change " f " in " c "\n"
    printf "commit refs/heads/main\nmark :%d\ncommitter A <a@b> %d +0000\n", c, 1600000000 + c * 60
    printf "data %d\n%s", length(message), message
    if (c > 50 && c % 40 == 0) printf "merge :%d\n", c - 30
    printf "M 100644 inline dir%d/sub%d/file%d\ndata %d\n%s\n", f % 7, f % 11, f, length(text), text
    if (c % 100 == 0) printf "reset refs/tags/v%d\nfrom :%d\n\n", c, c
  }
  print "done" }' >stream

# history RUN: the same work by `plain` or `under`; what it says goes to out.RUN.
history() {
  local run=$1
  "$run" git init -q --bare "$run.git"
  "$run" git -C "$run.git" fast-import --quiet --done <stream
  "$run" git clone -q --no-local "$run.git" clone."$run"
  cd clone."$run"
  "$run" git rev-parse HEAD 'HEAD^{tree}' v100
  "$run" git log --stat -p -M --graph | md5sum
  "$run" git log -S'changed by 77' --oneline | md5sum
  "$run" git blame dir0/sub0/file0 | md5sum
  "$run" git grep --threads=2 -n 'changed by [0-9]*3$' v1000 | md5sum
  "$run" git gc -q --prune=now
  "$run" git repack -adfq --depth=30 --window=20 --threads=2
  "$run" git fsck --full --strict --no-progress
  "$run" git archive HEAD | md5sum
  "$run" git checkout -q -b side v500
  echo side >side
  "$run" git add .
  "$run" env GIT_COMMITTER_DATE='1700000000 +0000' GIT_AUTHOR_DATE='1700000000 +0000' \
    git -c user.name=A -c user.email=a@b commit -qm side
  "$run" env GIT_COMMITTER_DATE='1700000001 +0000' GIT_AUTHOR_DATE='1700000000 +0000' \
    git -c user.name=A -c user.email=a@b merge -q -s ort -X theirs -m merged main
  "$run" git rev-parse HEAD 'HEAD^{tree}'
  "$run" git status --porcelain
  cd ..
}
history plain >out.plain 2>plain.log
history under >out.under 2>git.log
same 'what git printed' out.plain out.under
plain git -C clone.under fsck --full --strict --no-progress >fsck.log 2>&1 ||
  fail "the repository is damaged: $(tail -1 fsck.log)"
equal 'a file that differs in the work trees' '' "$(diff -rq -x .git clone.plain clone.under)"
mapped git
ok 'import, clone, gc, repack, merge: same hashes, logs and work tree; fsck is clean'

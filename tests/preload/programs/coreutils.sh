#!/usr/bin/env bash
# checks: sort --parallel=4 of a big file, a bash script with arrays and subshells: same bytes as
# under glibc's malloc
# needs: sort=coreutils awk=mawk
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

numbers $((300000 * SCALE)) >input

# sort
plain sort -n input >sorted.plain
under sort --parallel=4 -S 24M -n input >sorted.under 2>sort.log
same 'the sorted file' sorted.plain sorted.under
under sort -S 1M --batch-size=4 -T . -n input | under md5sum >merge.under 2>>sort.log
plain md5sum <sorted.plain >merge.plain
same 'the sum of the file sorted by merging' merge.plain merge.under

# bash: strings, arrays, subshells, substitution, here-documents
cat >work.sh <<'END'
declare -A count
list=()
while read -r n; do
  key=${n:0:3}
  count[$key]=$((${count[$key]:-0} + 1))
  list+=("$n$n$n")
done
for key in "${!count[@]}"; do printf '%s %s\n' "$key" "${count[$key]}"; done | sort
text="${list[*]}"
echo "${#text}" "${#list[@]}"
text=${text//7/seven}
printf '%s' "$text" | cksum
for i in {1..60}; do echo "$(printf '%s\n' "${list[@]:i:20}" | (tail -1; echo "$i"))"; done
unset 'list[5]' count
cat <<HERE
${list[*]:0:50}
HERE
END
head -20000 input >first
plain bash work.sh <first >bash.plain
under bash work.sh <first >bash.under 2>bash.log
same 'the output of bash' bash.plain bash.under

mapped sort bash md5sum tail
ok 'sort (threads, merging) and a bash script give the same bytes'

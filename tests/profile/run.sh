#!/usr/bin/env bash
# Profiles of a program whose stacks and numbers are known (known.cpp): opened by go tool pprof,
# decoded by protoc, and the report of leaks by addr2line; by both ways to unwind, with the
# allocator as a library of its own and linked into the program. The least: by tables, of the
# program, without go; and the walks of two programs.
# The walk of stacks beside the C library's, in real programs; and what sampling costs them.
# Called by: tests/run.sh profile, and by hand. Needs the release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=tests/part.sh
source tests/part.sh
packages=(g++ gcc binutils protobuf-compiler python3 perl)
if runs rest; then
  packages+=(git sqlite3 xz-utils nodejs valgrind)
  go=$(command -v go || true)
  if [[ -z $go && -x /usr/local/go/bin/go ]]; then go=/usr/local/go/bin/go; fi
  if [[ -z $go ]]; then packages+=(golang-go) go=go; fi
fi
tools/install-packages "${packages[@]}"
readonly kObjects=build/release/liblanemalloc_prefixed.a
[[ -e $kObjects ]] || { echo "FAILED: no library at $kObjects: run make build first"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Later releases build the tool when it is first called.
export PPROF_TMPDIR=$work GOTOOLCHAIN=local GOCACHE=${GOCACHE:-$PWD/build/go-cache}

# As the shared libraries are linked (CMakeLists.txt), and as a program is that links the static
# one.
build_all() {  # WAY; the program always has frame pointers, the allocator for one of the ways
  local source objects=("$kObjects")
  local flags=(-std=gnu++20 -O2 -g -fPIC -Wall -Wextra -Wshadow -Werror -Isrc -Iinclude
    -D_GNU_SOURCE)
  g++ "${flags[@]}" -fno-omit-frame-pointer -c tests/profile/known.cpp -o "$work/known.o"
  flags+=(-fvisibility=hidden -fno-exceptions -fno-rtti)
  if [[ $1 == frames ]]; then
    flags+=(-fno-omit-frame-pointer -momit-leaf-frame-pointer -DLANEMALLOC_FRAME_POINTERS=1
      -Wno-maybe-uninitialized)
    objects=()
    for source in core/platform/linux seeing/unwind/unwind seeing/unwind/unwind_rules; do
      g++ "${flags[@]}" -c "src/$source.cpp" -o "$work/${source##*/}.o"
      objects+=("$work/${source##*/}.o")
    done
  fi
  g++ "${flags[@]}" -c tests/profile/recorder.cpp -o "$work/recorder.o"
  g++ -shared -Wl,--defsym=lanemalloc_is_library=record_allocations "$work/recorder.o" \
    "${objects[@]}" -o "$work/librecorder.so"
  g++ "$work/known.o" "$work/librecorder.so" "-Wl,-rpath,$work" -o "$work/library"
  g++ "$work/known.o" "$work/recorder.o" "${objects[@]}" -o "$work/program"
}

# top PROFILE TYPE UNIT: what pprof makes of it.
top() {
  local kept=$work/top.$1.$2.$3
  [[ -e $kept ]] || "$go" tool pprof -top -nodecount=1000 "-sample_index=$2" "-unit=$3" "$work/$1" \
    >"$kept" 2>&1
  cat "$kept"
}

# has_line PROFILE TYPE UNIT FUNCTION FLAT CUMULATIVE: flat is what it allocated itself.
has_line() {
  top "$1" "$2" "$3" | tee /dev/stderr | awk -v name="$4" -v flat="$5" -v cumulative="$6" '
    $6 == name && $4 == cumulative && (flat == "any" || $1 == flat) { found = 1 }
    END { exit !found }'
}

has_total() { top "$1" "$2" "$3" | tee /dev/stderr | grep -qE "100% of $4 total"; }

# sizes_are SIZE...: of all objects, as pprof shows the labels.
sizes_are() {
  "$go" tool pprof -tags -unit=B -sample_index=inuse_space "$work/heap.pb" 2>&1 |
    tee /dev/stderr | awk '{ print $NF }' | grep -E '^[0-9]+B$' | sort |
    diff - <(printf '%s\n' "$@" | sort)
}

# Flat numbers where the allocator's own frames are left out.
check_pprof() {  # TITLE IS_LIBRARY
  local title=$1 own=$2 flat function row
  # type unit function, by itself, in all
  while read -r type unit function flat row; do
    [[ $own == yes ]] || flat=any
    check "$title: $type of $function is $row" has_line heap.pb "$type" "$unit" "$function" \
      "$flat" "$row"
  done <<'ROWS'
inuse_space B keep_some 600000B 600000B
inuse_space B allocate_for 31000B 31000B
inuse_space B first_caller 0 21000B
inuse_space B second_caller 0 10000B
inuse_objects count keep_some 60 60
inuse_objects count allocate_for 9 9
alloc_space B keep_some 1000000B 1000000B
alloc_space B free_all 210000B 210000B
alloc_objects count free_all 3 3
peak_space B keep_some 600000B 600000B
peak_space B free_all 70000B 70000B
peak_objects count free_all 1 1
ROWS
  check "$title: in use are 631000 bytes" has_total heap.pb inuse_space B 631000B
  check "$title: at most in use were 701000 bytes" has_total heap.pb peak_space B 701000B
  check "$title: sizes of objects are labels" sizes_are 10240B 3072B 5120B 73728B
  check "$title: what is shown without asking is inuse_space" grep -q 'Type: inuse_space' \
    <("$go" tool pprof -top "$work/heap.pb" 2>&1)
  [[ $own == yes ]] && flat=10ms || flat=any
  check "$title: 5 waits" has_line contention.pb contentions count wait_for_lock "${flat/10ms/5}" 5
  check "$title: 10 ms of waits" has_line contention.pb delay ms wait_for_lock "$flat" 10ms
}

decode() {
  protoc --decode=perftools.profiles.Profile -Itests/profile tests/profile/profile.proto <"$1"
}

# All fields are of the schema, every number refers to something, and places and mappings stand
# there once.
is_whole() {
  decode "$work/$1" >"$work/text" || return 1
  ! grep -nE '^ *[0-9]+[:{ ]' "$work/text" || return 1
  awk '
    /^[a-z_]+ \{/ { block = $1 }
    /^string_table:/ && !strings++ && $2 != "\"\"" { bad = "the first string is not empty" }
    block == "location" && /^  id:/ { if (seen[$2]++) bad = "place twice: " $2 }
    block == "location" && /^  mapping_id:/ { used_mapping[$2] = 1 }
    block == "mapping" && /^  id:/ { if (mapping[$2]++) bad = "mapping twice: " $2 }
    block == "sample" && /location_id:/ { used[$2] = 1 }
    block == "sample" && /value:/ { values++ }
    /^sample \{/ { samples++ }
    /^ *(type|unit|filename|build_id|name|drop_frames|default_sample_type):/ && $2 > last {
      last = $2
    }
    /^ *(key|num_unit):/ && $2 > last { last = $2 }
    END {
      for (id in used) if (!(id in seen)) bad = "no place " id
      for (id in used_mapping) if (!(id in mapping)) bad = "no mapping " id
      if (last >= strings) bad = "no string " last
      if (values % samples || !samples) bad = values " values of " samples " samples"
      if (bad) { print bad; exit 1 }
    }' "$work/text"
}
has_field() { decode "$work/$1" | grep -qE "$2"; }
# The build id that the linker wrote.
has_build_id() {
  local id
  id=$(readelf -n "$1" | sed -n 's/.*Build ID: //p')
  [[ -n $id ]] && decode "$work/heap.pb" | grep -q "\"$id\""
}

# The report: two stacks, the larger first, whose frames addr2line finds.
check_leaks() {  # TITLE PROGRAM
  local title=$1
  check "$title: the report adds up" grep -q '631000 bytes in 69 objects are alive, from 3 stacks' \
    "$work/leaks"
  check "$title: it names the largest first" diff - \
    <(sed -nE 's/.* ([0-9]+ bytes in [0-9]+ objects), allocated at/\1/p' "$work/leaks") \
    <<<$'600000 bytes in 60 objects\n21000 bytes in 7 objects'
  local names
  names=$(sed -nE "s|.* $2\+(0x[0-9a-f]+)$|\1|p" "$work/leaks" | xargs addr2line -f -s -C -e "$2" |
    grep -v : | tr '\n' ' ')
  check "$title: addr2line finds its functions" grep -qE \
    'keep_some\(\) main .*allocate_for\(unsigned int, unsigned long\) first_caller\(\) main' \
    <<<"$names"
}

# What it prints is the report of leaks.
writes_profiles() {
  "$work/$program" "$way" "$work/heap.pb" "$work/contention.pb" >"$work/leaks" 2>&1 || {
    cat "$work/leaks"
    return 1
  }
}
for way in tables frames; do
  [[ $way == tables ]] || runs rest || break
  build_all "$way"
  for program in library program; do
    [[ $program == program ]] || runs rest || continue
    title="$way, $program"
    rm -f "$work"/*.pb "$work"/top.*
    check "$title: profiles are written" writes_profiles
    [[ $program == library ]] && own=yes || own=no
    ! runs rest || check_pprof "$title" "$own"
    for profile in heap contention; do
      check "$title: the $profile profile is as the schema says" is_whole "$profile.pb"
    done
    check "$title: it knows the program's build" has_build_id "$work/$program"
    check "$title: when and for how long" has_field heap.pb \
      '^(time_nanos: 1700000000000000000|duration_nanos: 5000000000)$'
    check_leaks "$title" "$work/$program"
  done
done

if runs rest; then
  # A static program's tables are registered by one of its constructors: sampling begins behind
  # that.
  g++ -O2 -g -std=c++20 -pthread -static tests/tool/sampled.cpp build/release/liblanemalloc.a \
    -o "$work/static"
  check 'static: it is sampled from its start' \
    env "LANEMALLOC_OPTIONS=sample=64k,profile=exit,profile_file=$work/static.%k.pb" \
    "$work/static" heap
  check 'static: what it keeps is there' grep -qE ' keep_small$' <(top static.heap.pb inuse_space B)
fi

# estimates_each_site RUNS: on average over the runs, what the profile says each site has allocated
# is within a twentieth of what it has.
estimates_each_site() {
  local seed
  : >"$work/shares"
  for ((seed = 1; seed <= $1; seed++)); do
    rm -f "$work"/mixture.*.pb
    LD_PRELOAD=$PWD/build/release/liblanemalloc.so "$work/mixture" "$seed" >>"$work/shares" \
      2>"$work/errors" || return 1
    "$go" tool pprof -top -nodecount=1000 -sample_index=alloc_space -unit=B \
      "$work/mixture.heap.pb" 2>>"$work/errors" |
      awk '$6 ~ /^of_/ { sub("B", "", $1); print $6, "estimated", $1 }' >>"$work/shares"
  done
  awk '
    $2 == "estimated" { estimate[$1] += $3; next }
    { real[$1] += $2 }
    END {
      for (site in real) {
        off = estimate[site] / real[site] - 1
        printf "%s %.0f %.0f %+.3f\n", site, real[site], estimate[site], off
        if (off > 0.05 || off < -0.05) bad = 1
      }
      exit bad || length(real) != 5
    }' "$work/shares"
}
if runs rest; then
  gcc -O1 -g -Wall -Wextra -Werror -fno-builtin -fno-omit-frame-pointer \
    -fno-optimize-sibling-calls tests/profile/mixture.c -o "$work/mixture"
  export LANEMALLOC_OPTIONS="sample=64k,profile=exit,profile_file=$work/mixture.%k.pb"
  check 'sites of five sizes: each has its share' estimates_each_site 20
  unset LANEMALLOC_OPTIONS
fi

# Our walk by tables finds what the C library's finds, in programs that know nothing of it.
build_walks() {  # SOURCE FOLDER
  local flags=(-std=gnu++20 -O2 -fPIC -Wall -Wextra -Wshadow -Werror -Isrc -D_GNU_SOURCE)
  g++ "${flags[@]}" -c "$1" -o "$2/rules.o"
  g++ "${flags[@]}" -DWALKS_OF_MALLOC -shared tests/profile/walks.cpp "$2/rules.o" -o "$2/walks.so"
  g++ "${flags[@]}" tests/profile/walks.cpp tests/profile/reloads.cpp "$2/rules.o" -o "$2/reloads"
}
# same_walks LEAST FOLDER COMMAND...: by that folder's library at least LEAST stacks were compared,
# all were the same, and at most one in ten was left to the C library.
same_walks() {
  local least=$1 folder=$2
  shift 2
  rm -f "$work/walks"
  LD_PRELOAD=$folder/walks.so WALKS_FILE=$work/walks "$@" >"$work/output" || return 1
  awk -v least="$least" '
    { print; same += $3; left += $5; different += $7 }
    END { exit !(same >= least && left * 10 <= same && different == 0) }' "$work/walks"
}
# fails_if_wrong TEXT REPLACEMENT COMMAND...: with that fault in the walk, the command fails.
fails_if_wrong() {
  local text=$1 replacement=$2
  shift 2
  mkdir -p "$work/wrong"
  awk -v text="$text" -v replacement="$replacement" '
    (at = index($0, text)) {
      $0 = substr($0, 1, at - 1) replacement substr($0, at + length(text))
      found++
    }
    { print }
    END { exit found != 1 }' src/seeing/unwind/unwind_rules.cpp >"$work/wrong/unwind_rules.cpp" ||
    return 1
  build_walks "$work/wrong/unwind_rules.cpp" "$work/wrong"
  ! "$@"
}
build_walks src/seeing/unwind/unwind_rules.cpp "$work"
for frame in 1000 3000 300000; do
  gcc -O2 -fPIC -shared -Wl,--build-id "-DFRAME=$frame" tests/profile/plugin.c \
    -o "$work/frame-$frame.so"
  gcc -O2 -fPIC -shared -Wl,--build-id=none "-DFRAME=$frame" tests/profile/plugin.c \
    -o "$work/nameless-$frame.so"
done
check 'walks: of a library in the place of another' "$work/reloads" "$work/frame-1000.so" \
  "$work/frame-3000.so"
check 'walks: of libraries without build ids' "$work/reloads" "$work/nameless-1000.so" \
  "$work/nameless-3000.so"
check 'walks: a frame that is too large for a rule is left to the C library' \
  grep -q 'left to the C library' <("$work/reloads" "$work/frame-300000.so")
check 'walks: g++' same_walks 1000 "$work" g++ -std=gnu++20 -O2 -Isrc \
  -c src/seeing/unwind/unwind_rules.cpp -o "$work/again.o"
check 'walks: python' same_walks 1000 "$work" env PYTHONMALLOC=malloc \
  python3 -c 'import json; [json.loads("{\"a\": [1, 2, {}]}") for _ in range(20000)]'
# shellcheck disable=SC2016  # perl's, not the shell's
check 'walks: perl' same_walks 100 "$work" \
  perl -e 'for (1..20000) { push @list, { number => $_, text => "x" x 100 } }'
runs rest || finish

check 'walks: the check catches rules that outlive their library' fails_if_wrong \
  'build = at.dlfo_link_map == _r_debug.r_map ? 1 : build_id(at.dlfo_link_map->l_addr)' \
  'build = 1' "$work/wrong/reloads" "$work/frame-1000.so" "$work/frame-3000.so"
check 'walks: the check catches rules that are kept of a library without a build id' \
  fails_if_wrong 'if (object.build == 0) return look_up' 'if (false) return look_up' \
  "$work/wrong/reloads" "$work/nameless-1000.so" "$work/nameless-3000.so"
check 'walks: the check catches a frame pointer that is not taken back' fails_if_wrong \
  'if (rule.saved != 0) at.frame_pointer' 'if (false) at.frame_pointer' same_walks 1000 \
  "$work/wrong" g++ -O2 -Isrc -std=gnu++20 -c src/seeing/unwind/unwind_rules.cpp -o "$work/again.o"
check 'walks: git' same_walks 3 "$work" git grep --no-index -c the -- docs src
check 'walks: sqlite' same_walks 100 "$work" sqlite3 :memory: 'create table t(a);
  with recursive c(x) as (select 1 union all select x + 1 from c where x < 50000)
  insert into t select x from c; select count(*) from t where a like "%1%"'
check 'walks: xz, with threads' same_walks 1 "$work" xz --threads=4 --block-size=100KiB \
  -k -c build/release/liblanemalloc.so
check 'walks: node' same_walks 1000 "$work" \
  node -e 'let a = []; for (let i = 0; i < 1e5; i++) a.push({i});
    console.log(JSON.stringify(a).length)'

check 'sampling costs real programs at most 1 % of their instructions' python3 bench/sampling.py \
  --instructions --scale 0.05 python sqlite

finish

#!/usr/bin/env bash
# checks: python3: its own regression tests (threads, json, pickle, gc, fork, multiprocessing, …); a
# program's output
# needs: /usr/bin/python3=python3 /usr/lib/python3.*/test/test_gc.py=libpython3.11-testsuite
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

# Objects of 512 bytes and less come from malloc, too; regression tests that allocate by themselves
# find debug hooks off.
export PYTHONMALLOC=malloc PYTHONHASHSEED=1
tests=0

# regression TEST… [-m PATTERN…]: they all succeed, and a plausible number of cases ran.
regression() {
  local least=$1 log=regression.$1.log modules=0 cases word
  shift
  for word in "$@"; do [[ $word != test_* ]] || modules=$((modules + 1)); done
  under /usr/bin/python3 -m test -j2 --timeout 150 --tempdir "$PWD" --junit-xml cases.xml "$@" \
    >"$log" 2>&1 ||
    fail "$(grep -E '^[0-9]+ tests? failed|^    test_|Fatal|Error' "$log" | head -3 | tr '\n' ' ')"
  grep -qE "^All $modules tests OK" "$log" ||
    fail "not all of $modules parts ran: $(tail -1 "$log")"
  cases=$(grep -o '<testcase ' cases.xml | wc -l)
  ((cases >= least)) || fail "only $cases test cases ran, $least were expected"
  tests=$((tests + cases))
}

cat >work.py <<'END'
import concurrent.futures, gc, hashlib, json, multiprocessing, pickle, re, sqlite3, struct, sys
import threading, weakref, zlib

def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()

def work(seed: int) -> str:
    x, table = seed + 1, {}
    for i in range(4000):
        x = x * 16807 % 2147483647
        table[f"k{x % 1000}"] = [x, "v" * (x % 300), {"n": (x / 7.0, None, [i] * (x % 20))}]
        if i % 5 == 0:
            table.pop(f"k{x % 777}", None)
    text = json.dumps(table, sort_keys=True)
    assert json.loads(text).keys() == table.keys() == pickle.loads(pickle.dumps(table)).keys()
    packed = zlib.compress(text.encode(), 1 + seed % 9)
    assert zlib.decompress(packed).decode() == text
    return f"{seed} {md5(text.encode())} {len(packed)} {len(re.findall('v+', text))}"

class Cycle:
    def __init__(self, size: int) -> None:
        self.me, self.data = self, bytearray(size)

def main(scale: int) -> None:
    out = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        out += sorted(pool.map(work, range(40 * scale)))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert sorted(pool.map(work, range(40 * scale))) == out
    alive = [weakref.ref(Cycle(i % 5000)) for i in range(20000)]
    gc.collect()
    out.append(str(sum(ref() is not None for ref in alive)))
    database = sqlite3.connect(":memory:")
    database.execute("create table t(a, b)")
    database.executemany("insert into t values(?, ?)", ((i, "x" * (i % 400)) for i in range(20000)))
    sums = database.execute("select sum(a), sum(length(b)), count(distinct b) from t")
    out.append(str(sums.fetchone()))
    parts = []
    pack = lambda i: parts.append(struct.pack(">I", i) * i)
    threads = [threading.Thread(target=pack, args=(i,)) for i in range(300)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    out.append(md5(b"".join(sorted(parts))))
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
        out.append(md5(str(3 ** 50000).encode()))
    print("\n".join(out))

main(int(sys.argv[1]))
END
plain /usr/bin/python3 work.py "$SCALE" >out.plain
under /usr/bin/python3 work.py "$SCALE" >out.under 2>work.log
same 'the output of work.py' out.plain out.under
under env -u PYTHONMALLOC /usr/bin/python3 work.py "$SCALE" >out.under 2>>work.log
same 'the output of work.py with pymalloc' out.plain out.under

for ((i = 0; i < SCALE; i++)); do
  regression 2000 test_threading test_json test_pickle test_gc test_weakref test_dict test_list \
    test_set test_bytes test_thread test_queue test_ctypes test_decimal test_fork1 test_zlib \
    test_re test_unicode
  regression 150 test_multiprocessing_fork test_multiprocessing_spawn -m WithProcessesTestQueue \
    -m WithProcessesTestPool -m WithProcessesTestSharedMemory -m WithProcessesTestHeap \
    -m WithProcessesTestConnection -m WithThreadsTestPool -m WithManagerTestContainers \
    -m WithProcessesTestSharedCTypes -m WithProcessesTestPoolWorkerLifetime
done
mapped python3
ok "$tests cases of 19 regression tests succeed;" \
  "a program with threads, forks, json, pickle prints the same"

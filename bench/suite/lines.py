"""Which lines there are, in the order of their importance: a budget of time drops the last ones.

Used by: main.py, measure.py. A line is a workload and its number of threads. Most have more threads
than this kind of machine has CPUs, for there an allocator's threads are stopped in the middle of
everything; one and two threads stand where they say something else.
"""

# 8 workers of xmalloc are 16 threads; mleak has ten threads at a time, as in the originals.
LINES: tuple[tuple[str, int], ...] = (
    ("larson", 8),
    ("xmalloc", 16),
    ("mstress", 8),
    ("rptest", 8),
    ("malloc-large", 1),
    ("larson", 32),
    ("server-latency", 8),
    ("glibc-thread", 8),
    ("glibc-simple", 1),
    ("sh8", 8),
    ("cache", 8),
    ("alloc-test", 1),
    ("larson", 2),
    ("ring", 2),
    ("size-shift", 8),
    ("cache-scratch", 8),
    ("realloc", 1),
    ("replaced", 8),
    ("fan-in", 8),
    ("fan-out", 8),
    ("xmalloc", 4),
    ("mstress", 32),
    ("rptest", 2),
    ("t-test1", 8),
    ("server-latency", 32),
    ("sh6", 2),
    ("mleak", 10),
    ("cache-thrash", 8),
    ("rptest", 32),
    ("ring", 8),
    ("cache-scratch", 1),
    ("glibc-thread", 32),
    ("alloc-test", 8),
    ("asymmetric", 8),
    ("threadtest", 8),
    ("mstress", 2),
    ("sh8", 32),
    ("larson", 1),
    ("size-shift", 32),
    ("glibc-thread", 1),
)

SECONDS = 1.0  # of the steady state
LONG = {"cache": 60.0}  # what shows only after a minute
ONCE_FROM = (
    30.0  # a line that is measured for so long has one round before the others have all of theirs
)

# Memory some seconds after the end: so much work, by 8 threads.
IDLE_OPERATIONS = {"burst-idle": 300_000, "size-shift": 1_500_000}
IDLE_THREADS = 8


def seconds_of(workload: str, seconds: float = SECONDS) -> float:
    return max(seconds, LONG.get(workload, 0.0))

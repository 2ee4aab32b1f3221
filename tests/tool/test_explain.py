"""lanemalloc explain over situations that were made: the right band comes first, and the bands add
up."""

from __future__ import annotations

import json
import re

import pytest
from conftest import LIBRARY, build, tool

from lanemalloc.residency import Mapping, parse
from lanemalloc.waterfall import grouped

MIB = 1 << 20

# name, number, options; the largest band and at least its MiB; what is advised first, if anything
SITUATIONS = [
    ("backlog", 100, "lanes=owned,decay_ms=-1", "in_flight", 60, "in_flight"),
    ("idle", 80, "lanes=owned,decay_ms=-1", "lanes", 40, "lanes"),
    ("fragments", 1, "", "fragments", 150, "fragments"),
    ("cached", 1, "decay_ms=-1", "cached", 250, "cached"),
    ("mapped", 1, "", "anonymous", 290, None),
    ("live", 100, "", "live", 90, None),
]


@pytest.mark.parametrize(("name", "number", "options", "largest", "least", "first"), SITUATIONS)
def test_each_situation_is_named(
    start, name: str, number: int, options: str, largest: str, least: int, first: str | None
) -> None:
    process = start(name, number, options=options)
    done = tool("explain", "--json", process.pid)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    bands = {band["key"]: band for band in found["bands"]}
    assert max(bands.values(), key=lambda band: band["bytes"])["key"] == largest
    assert bands[largest]["bytes"] >= least * MIB
    assert abs(found["accounted_bytes"] - found["resident_bytes"]) <= 0.02 * found["resident_bytes"]
    assert found["by_page"]
    if first is not None:
        assert found["advice"][0] == first
        assert bands[first]["remedy"]
    else:
        worth = [
            key for key in found["advice"] if bands[key]["saves"] > 0.05 * found["resident_bytes"]
        ]
        assert worth == []
    assert all(band["cause"] for band in found["bands"])


def test_what_is_advised_for_the_option_that_is_in_the_way(start) -> None:
    for name, number in (("cached", 1), ("idle", 80)):
        text = tool("explain", start(name, number, options="decay_ms=-1,lanes=owned").pid).stdout
        first = text.split("What shrinks it")[1].split("2. ")[0]
        assert "decay_ms=1000" in first


def test_the_advice_works(start) -> None:
    """What decay_ms=1000 is said to save is saved by it."""
    kept = json.loads(
        tool("explain", "--json", start("idle", 80, options="lanes=owned,decay_ms=-1").pid).stdout
    )
    process = start("idle", 80, options="lanes=owned,decay_ms=100")
    for _ in range(40):
        given = json.loads(tool("explain", "--json", process.pid).stdout)
        saved = kept["resident_bytes"] - given["resident_bytes"]
        said = sum(band["saves"] for band in kept["bands"] if band["key"] in ("lanes", "cached"))
        if saved > 0.8 * said:
            return
    raise AssertionError(f"{said} bytes were to be saved, {saved} were")


def test_a_picture_for_people(start) -> None:
    text = tool(
        "explain", "-v", start("cached", 1, options="decay_ms=-1").pid, COLUMNS="110"
    ).stdout
    assert re.search(r"Most of it: cached: free runs, 25\d MiB", text)
    assert re.search(r"resident memory +2\d\d MiB", text)
    assert re.search(r"sum of the bands .* (99|100) % of it", text)
    assert max(map(len, text.splitlines())) <= 140


def test_while_the_process_is_busy_the_bands_still_add_up(start) -> None:
    process = start("busy", 3)
    found = json.loads(tool("explain", "--json", process.pid).stdout)
    assert abs(found["accounted_bytes"] - found["resident_bytes"]) <= 0.1 * found["resident_bytes"]


def test_heaps_and_pools_have_bands_of_their_own(start) -> None:
    program = build("pools", f"-L{LIBRARY.parent}", "-llanemalloc", f"-Wl,-rpath,{LIBRARY.parent}")
    found = json.loads(tool("explain", "--json", start(program=program, preload=False).pid).stdout)
    bands = {band["key"]: band["bytes"] for band in found["bands"]}
    assert bands["live_kinds"] > 9 * MIB
    assert abs(found["accounted_bytes"] - found["resident_bytes"]) <= 0.02 * found["resident_bytes"]


def test_sampled_objects_have_a_band_of_their_own(start) -> None:
    found = json.loads(
        tool("explain", "--json", start("live", 100, options="sample=65536").pid).stdout
    )
    bands = {band["key"]: band["bytes"] for band in found["bands"]}
    assert bands["sampled"] > MIB
    assert abs(found["accounted_bytes"] - found["resident_bytes"]) <= 0.02 * found["resident_bytes"]


SMAPS = """\
55d000000000-55d000001000 r-xp 00000000 fe:00 1234                       /usr/bin/x y: z
Rss:                   4 kB
LazyFree:              0 kB
7f0000000000-7f0000010000 ---p 00000000 00:00 0
Rss:                   0 kB
7f0000010000-7f0000810000 rw-p 00000000 00:00 0
Rss:                  32 kB
LazyFree:              8 kB
Swap:                 12 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  20 kB
"""


def test_smaps_are_read_and_told_apart() -> None:
    maps = list(parse(iter(SMAPS.splitlines(keepends=True))))
    assert [one.resident for one in maps] == [4096, 0, 32768, 20480]
    assert maps[0].path == "/usr/bin/x y: z"
    assert (maps[2].lazy_free, maps[2].swapped) == (8192, 12288)
    groups = grouped(maps)
    assert [one.begin for one in groups["stacks"]] == [0x7F0000010000, 0x7FFC00000000]
    assert [one.path for one in groups["code"]] == ["/usr/bin/x y: z"]


def test_shared_memory_and_data_are_told_apart() -> None:
    maps = [
        Mapping(0, 4096, "rw-s", "/dev/shm/a"),
        Mapping(8192, 12288, "rw-p", "/lib/x.so"),
        Mapping(12288, 16384, "rw-p", ""),
        Mapping(1 << 30, 2 << 30, "rw-p", ""),
    ]
    assert {key: len(found) for key, found in grouped(maps).items()} == {
        "shared": 1,
        "data": 2,
        "anonymous": 1,
    }

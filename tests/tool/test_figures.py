"""Heaps and pools by name, in what the library writes itself: as JSON and as OpenMetrics."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from conftest import LIBRARY, ROOT, build
from prometheus_client.openmetrics.parser import text_string_to_metric_families

LINK = (f"-L{LIBRARY.parent}", "-llanemalloc", f"-Wl,-rpath,{LIBRARY.parent}")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def pools() -> Path:
    return build("pools", *LINK)


def written(start: Start, pools: Path, how: str, *argv: str) -> str:
    """What a program that has made them writes at its end."""
    process = start(*argv, program=pools, options=f"stats=exit,stats_format={how}", preload=False)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return err


def test_json(start: Start, pools: Path) -> None:
    found = json.loads(written(start, pools, "json"))
    jsonschema.validate(found, json.loads((ROOT / "docs" / "stats.schema.json").read_text()))
    assert found["heaps_left_out"] == 0
    by_name = {one["name"]: one for one in found["heaps"]}
    heap, pool = by_name['tenant "one"\n'], by_name["sessions"]
    assert (heap["kind"], heap["limit_bytes"], heap["sizes"]) == ("heap", 10 << 20, 1)
    assert 9800 * 1000 <= heap["used_bytes"] <= heap["peak_bytes"] <= 10 << 20
    assert heap["used_bytes"] <= heap["slab_bytes"] and heap["slab_bytes"] % (64 << 10) == 0
    assert (pool["kind"], pool["limit_bytes"]) == ("pool", None)
    assert 500 * 200 <= pool["used_bytes"] <= pool["slab_bytes"]
    assert heap["refills"] > 0
    assert sum(one["slab_bytes"] for one in found["heaps"]) == found["figures"]["kind_bytes"]
    assert json.loads(written(start, pools, "json", "unused"))["heaps"] == []


def test_openmetrics(start: Start, pools: Path) -> None:
    text = written(start, pools, "openmetrics")
    families = {one.name: one for one in text_string_to_metric_families(text)}
    for name, least in (("used", 9800 * 1000), ("peak", 9800 * 1000), ("slab", 9800 * 1000)):
        samples = {
            one.labels["heap"]: (one.labels["kind"], one.value)
            for one in families[f"lanemalloc_heap_{name}_bytes"].samples
        }
        assert samples['tenant "one"\n'][0] == "heap" and samples["sessions"][0] == "pool"
        assert samples['tenant "one"\n'][1] >= least > samples["sessions"][1] >= 100_000
    (limit,) = families["lanemalloc_heap_limit_bytes"].samples
    assert (limit.labels["heap"], limit.value) == ('tenant "one"\n', 10 << 20)


def test_odd_names_equal_names_and_many(start: Start, tmp_path: Path) -> None:
    program = build("families", *LINK)
    found = json.loads(written(start, program, "json"))
    names = [one["name"] for one in found["heaps"]]
    assert len(names) == 64 and found["heaps_left_out"] == 6
    # Of the last made first: what is no UTF-8, and what may not stand in JSON, is a question mark.
    odd = {"tab?", "b\\s", "gr\u00f6\u00dfe", "cut?", "sur???", "??", ""}
    assert odd <= set(names), names
    text = written(start, program, "openmetrics")
    families = {one.name: one for one in text_string_to_metric_families(text)}
    used = families["lanemalloc_heap_used_bytes"].samples
    keys = [(one.labels["heap"], one.labels["kind"]) for one in used]
    assert len(keys) == len(set(keys))
    same = sum(one["used_bytes"] for one in found["heaps"] if one["name"] == "same")
    assert [one.value for one in used if one.labels["heap"] == "same"] == [same]
    assert same >= 10 * 100

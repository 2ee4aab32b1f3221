"""lanemalloc exporter: what it serves, and that Debian's Prometheus takes it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CLEAN, LIBRARY, ROOT, TOOL, build, tool

from lanemalloc.metrics import Processes, buckets_of

MONITORING = ROOT / "python" / "monitoring"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def get(url: str, accept: str = "*/*") -> tuple[str, str]:
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Accept": accept}), timeout=20
    ) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


@pytest.fixture
def served() -> Iterator[str]:
    port = free_port()
    command = [str(TOOL), "exporter", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=CLEAN)
    assert process.stderr is not None and "serving http://127.0.0.1" in process.stderr.readline()
    yield f"http://127.0.0.1:{port}/metrics"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def of_process(text: str, pid: int) -> dict[str, float]:
    """Samples of one process, by name and the labels that are not the process'."""
    found = {}
    for line in text.splitlines():
        if f'pid="{pid}"' in line:
            name, labels, value = re.fullmatch(  # type: ignore[union-attr]
                r"(\w+)\{(.*)\} (\S+)", line
            ).groups()
            others = [
                one
                for one in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
                if one[0] not in ("pid", "process", "cgroup")
            ]
            found[name + "".join(f"|{value}" for _, value in sorted(others))] = float(value)
    return found


def promtool(*argv: str, text: str = "") -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not there")
    return subprocess.run(
        ["promtool", *argv], input=text, capture_output=True, text=True, check=False
    )


def test_other_paths_are_not_found(served: str) -> None:
    assert "# TYPE lanemalloc_processes" in get(served)[0]
    for path in ("", "/", "/metric", "/metrics/x"):
        with pytest.raises(urllib.error.HTTPError) as raised:
            get(served.removesuffix("/metrics") + path)
        assert raised.value.code == 404 and "/metrics" in raised.value.read().decode()


def test_every_process_is_there_with_its_figures(start, served: str) -> None:
    one, two = start("live", 10), start("rest", 3)
    text, kind = get(served)
    assert kind.startswith("text/plain")
    mine = of_process(text, one.pid)
    assert 10_000 <= mine["lanemalloc_live_objects"] < 10_100
    assert mine["lanemalloc_resident_bytes"] > 10 << 20
    assert mine["lanemalloc_class_live_bytes|1024"] >= 10_000 * 1000
    assert of_process(text, two.pid)["lanemalloc_threads"] >= 4
    assert 'process="situations"' in text
    two.kill()
    two.wait()
    time.sleep(0.6)
    text, _ = get(served)
    assert not of_process(text, two.pid) and of_process(text, one.pid)


def test_openmetrics_is_well_formed(start, served: str) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    start("busy", 3, options="lanes=shared:1")
    program = build("pools", f"-L{LIBRARY.parent}", "-llanemalloc", f"-Wl,-rpath,{LIBRARY.parent}")
    pools = start(program=program, preload=False)
    text, kind = get(served, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["lanemalloc_contention_wait_seconds"].type == "histogram"
    assert families["lanemalloc_live_bytes"].unit == "bytes"
    heaps = [
        sample.labels
        for sample in families["lanemalloc_heap_used_bytes"].samples
        if sample.labels["pid"] == str(pools.pid)
    ]
    assert {labels["heap"] for labels in heaps} == {'tenant "one"?', "sessions"}
    for name in families:
        assert name.startswith("lanemalloc_")


def test_promtool_finds_nothing_wrong(start) -> None:
    start("busy", 3, options="lanes=shared:1")
    done = promtool("check", "metrics", text=tool("exporter", "--once").stdout)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    done = promtool("check", "rules", str(MONITORING / "lanemalloc.rules.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("check", "config", "--syntax-only", str(MONITORING / "prometheus.example.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def declared() -> set[str]:
    """Names of all samples that there may be."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", tool("exporter", "--once").stdout, re.M):
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + end for end in ends}
    return names


def test_every_metric_of_the_alerts_and_the_dashboard_is_there() -> None:
    there = declared()
    for path in (MONITORING / "lanemalloc.rules.yml", MONITORING / "grafana-dashboard.json"):
        text = path.read_text()
        named = set(re.findall(r"\blanemalloc_[a-z_]+", text))
        assert len(named) > 5
        assert named <= there, f"{path.name}: {sorted(named - there)}"
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) >= 12
    assert all(panel["targets"] for panel in dashboard["panels"])


def test_counters_never_go_back(start) -> None:
    process = start("busy", 3)
    processes = Processes()
    before: dict[tuple[str, tuple[str, ...]], float] = {}
    for _ in range(8):
        processes._last = (-1e9, processes._last[1])
        for family in processes.collect():
            if family.type != "counter":
                continue
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert sample.value >= before.get(key, 0.0), sample
                before[key] = sample.value
        time.sleep(0.2)
    assert process.poll() is None


def test_a_scrape_is_bounded_in_processes_and_series(start) -> None:
    for _ in range(4):
        start("rest", 1)
    text = tool("exporter", "--once", "--processes", 2, "--seconds", 20).stdout
    assert re.search(r"^lanemalloc_processes 2\.0$", text, re.M)
    left_out = re.search(r'lanemalloc_processes_left_out\{reason="limit"\} (\S+)', text)
    assert left_out is not None and float(left_out.group(1)) >= 2
    assert text.count("\n") < 900
    hasty = Processes(100, seconds=0.0)
    assert not hasty.scrape().seen


def test_buckets_are_cumulative() -> None:
    assert buckets_of([1, 2, 0, 4]) == [
        ("1e-06", 1.0),
        ("2e-06", 3.0),
        ("4e-06", 3.0),
        ("+Inf", 7.0),
    ]


def test_a_port_in_use_and_a_bad_one_are_told(served: str) -> None:
    port = served.split(":")[2].split("/")[0]
    done = tool("exporter", "--listen", f"127.0.0.1:{port}")
    assert done.returncode == 3 and "cannot listen" in done.stderr
    for wrong in ("nothing", "foo:bar", "localhost:70000"):
        done = tool("exporter", "--listen", wrong)
        assert done.returncode == 2 and "that is no port" in done.stderr


def test_it_listens_on_ipv6() -> None:
    port = free_port()
    process = subprocess.Popen(
        [str(TOOL), "exporter", "--listen", f"[::1]:{port}"],
        stderr=subprocess.PIPE,
        text=True,
        env=CLEAN,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    if "cannot listen" in line:
        process.wait()
        pytest.skip("no IPv6 here")
    assert "lanemalloc_processes" in get(f"http://[::1]:{port}/metrics")[0]
    process.terminate()
    assert process.wait(20) == 0


def test_prometheus_scrapes_it_and_the_alerts_run(start, served: str, tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus") or ""
    if not prometheus:
        pytest.skip("prometheus is not there")
    process = start("busy", 3, options="lanes=shared:1")
    port = free_port()
    shutil.copy(MONITORING / "lanemalloc.rules.yml", tmp_path)
    config = (
        (MONITORING / "prometheus.example.yml")
        .read_text()
        .replace("localhost:9464", served.split("/")[2])
    )
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n" + config
    )
    flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    command = [prometheus, *flags, f"--web.listen-address=127.0.0.1:{port}"]
    log = tmp_path / "log"
    with open(log, "w") as file:
        running = subprocess.Popen(command, stderr=file, stdout=file)
    try:
        api = f"http://127.0.0.1:{port}/api/v1/"
        value = wait_for_query(api, f'lanemalloc_allocations_total{{pid="{process.pid}"}}', log)
        assert float(value) > 1000
        rate = (
            f'sum(rate(lanemalloc_contention_failures_total{{pid="{process.pid}",at="lane"}}[10s]))'
        )
        assert float(wait_for_query(api, rate, log)) > 0
        target = json.loads(get(api + "targets")[0])["data"]["activeTargets"][0]
        assert (target["health"], target["lastError"]) == ("up", "")
        rules = json.loads(get(api + "rules")[0])["data"]["groups"][0]["rules"]
        assert len(rules) >= 6
        assert all(
            rule["health"] in ("ok", "unknown") and not rule.get("lastError") for rule in rules
        )
    finally:
        running.kill()
        running.wait()


def wait_for_query(api: str, query: str, log: Path) -> str:
    """The first value that is not 0."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            answer = json.loads(
                get(
                    api
                    + "query?query="
                    + urllib.request.quote(  # type: ignore[attr-defined]
                        query
                    )
                )[0]
            )
            result = answer["data"]["result"]
            if result and float(result[0]["value"][1]) > 0:
                return str(result[0]["value"][1])
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"nothing for {query}:\n{log.read_text()[-2000:]}")

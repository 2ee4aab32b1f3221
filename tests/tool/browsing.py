"""A browser for the tests of pages. Called by: conftest.py, tests of pages."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not there: it drives the browser")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402, F401

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
SHOTS = os.environ.get("LANEMALLOC_TEST_SHOTS")  # a folder to keep the pictures in


class Browser:
    """A page of a file, with the media and size that are asked for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, path: Path, width: int = 1280, scheme: str = "light", script: bool = True
    ) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.command(
            "Emulation.setEmulatedMedia",
            media="",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.command("Emulation.setScriptExecutionDisabled", value=not script)
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())
        if script:
            self.wait("return document.documentElement.dataset.ready === 'yes'")

    def command(self, name: str, **more: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, more)

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def wait(self, code: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not self.js(code):
            assert time.monotonic() < deadline, f"not within {seconds} s: {code}"
            time.sleep(0.05)

    def keys(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def requests(self) -> list[str]:
        """Of everything but the page itself."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        sent = [
            one["params"]["request"]["url"]
            for one in messages
            if one["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent if not url.startswith(("file:", "data:", "blob:"))]

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def shot(self, name: str) -> bytes:
        height = min(self.js("return document.documentElement.scrollHeight"), 12_000)
        clip = {"x": 0, "y": 0, "width": self.js("return innerWidth"), "height": height, "scale": 1}
        picture = base64.b64decode(
            self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        )
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            (Path(SHOTS) / f"{name}.png").write_bytes(picture)
        return picture


def opened(folder: Path) -> Iterator[Browser]:
    """A browser without a network, whose profile is in `folder`."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and its driver are not there")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(120)
    one = Browser(driver)
    one.command("Network.enable")
    one.command(
        "Network.emulateNetworkConditions",
        offline=True,
        latency=0,
        downloadThroughput=0,
        uploadThroughput=0,
    )
    yield one
    driver.quit()


def axe_script() -> Path:
    if chosen := os.environ.get("LANEMALLOC_TEST_AXE"):  # another version of axe.min.js
        return Path(chosen)
    spec = importlib.util.find_spec("axe_core_python")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    if not places:
        pytest.skip("axe-core-python is not there: it carries axe-core, and needs Python 3.10")
    return Path(places[0]) / "axe.min.js"


def axe_finds(browser: Browser) -> tuple[list[Any], int]:
    """What is wrong with the page that is open, and how many rules it keeps."""
    browser.js(axe_script().read_text(encoding="utf-8") + "; window.axe = axe;")
    found = browser.driver.execute_async_script(
        "const done = arguments[0]; axe.run(document).then(done, e => done({error: String(e)}))"
    )
    assert "error" not in found, found
    told = [
        (one["id"], one["help"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in found["violations"]
    ]
    return told, len(found["passes"])

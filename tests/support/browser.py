"""Debian's Chromium, driven by its own chromedriver; nothing is fetched from the network."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parent / "vendor" / "axe-core-4.14.0.min.js"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
PHONE, DESK = 360, 1100  # pixels


def find_browser() -> tuple[str, str]:
    """Return the paths of Chromium and its driver; skip without them, or fail on CI."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if found[0] is None or found[1] is None:
        missing = "needs Debian's packages chromium and chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found[0], found[1]


class Browser:
    """One Chromium with an empty profile.

    Args:
        profile: an empty directory.
    """

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        program, driver = find_browser()
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def open(
        self, address: str, *, width: int = DESK, dark: bool = False, printed: bool = False
    ) -> None:
        """Open a page as it is seen on a screen of a width, or on paper."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        media = {"media": "print" if printed else "", "features": [scheme, still]}
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.driver.get(address)

    def run(self, program: str, *arguments: Any) -> Any:
        """Return the value of a JavaScript expression or function body."""
        return self.driver.execute_script(program, *arguments)

    def find(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def console(self) -> list[str]:
        """Return what was written to the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def wait(self, condition: Callable[[], Any], seconds: float = 15) -> Any:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, "it did not come to pass in time"
            time.sleep(0.05)
        return found

    def serious_findings(self) -> list[str]:
        """Return what axe-core finds on the page that is serious or critical."""
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then((all) => done(all.violations));"
        )
        return [
            f"{one['id']}: {one['help']} {one['nodes'][0]['html'][:200]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

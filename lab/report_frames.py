"""What a report costs a browser: ``python lab/report_frames.py report.html`` prints it.

With a folder, as in ``python lab/report_frames.py report.html docs``, it only writes the top of the
report there, as ``report-light.png`` and ``report-dark.png``.

Times are those that the page's main thread was busy, so that what else the machine does is not in
them: until the page is drawn, and for each step of zooming and panning, one after another.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

STEPS = 12
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Costs:
    """Measures what actions on a page cost its main thread, in milliseconds."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def so_far(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return 1_000 * float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    def of(self, action: Callable[[], object], wait: int = 60) -> float:
        before = self.so_far()
        action()
        self._page.evaluate(PAINTED)
        self._page.wait_for_timeout(wait)
        return self.so_far() - before


def measure_place(page: Page, costs: Costs, name: str, place: str) -> None:
    """Zoom in, pan and zoom out where something is drawn; print the cost of a step."""
    page.locator(place).scroll_into_view_if_needed()
    box = page.locator(place).bounding_box()
    assert box is not None  # noqa: S101
    x, y = box["x"] + box["width"] / 2, box["y"] + 150
    page.mouse.move(x, y)
    page.wait_for_timeout(800)
    zoom = [costs.of(lambda: page.mouse.wheel(0, -100)) for _ in range(STEPS)]
    page.mouse.down()
    page.mouse.move(x + 30, y, steps=5)  # at once: a button that is held is no pan
    pan = [costs.of(lambda n=n: page.mouse.move(x + 30 + 6 * n, y)) for n in range(1, STEPS)]  # type: ignore[misc]
    page.mouse.up()
    zoom += [costs.of(lambda: page.mouse.wheel(0, 100)) for _ in range(STEPS)]
    for what, values in (("zoom", zoom), ("pan", pan)):
        print(f"{name}, {what}: median {np.median(values):.0f} ms, most {max(values):.0f} ms")


def take_pictures(browser: Browser, path: Path, folder: Path) -> None:
    """Write the top of a report in both styles."""
    for style in ("light", "dark"):
        page = browser.new_page(viewport={"width": 1000, "height": 1400}, color_scheme=style)
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("body[data-drawn=yes]", timeout=300_000)
        page.wait_for_timeout(1_000)
        page.screenshot(path=folder / f"report-{style}.png")


def main(path: Path, folder: Path | None = None) -> None:
    """Open a report in headless Chromium and print what it costs, or take its pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        if folder:
            take_pictures(browser, path, folder)
            return
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        costs = Costs(page)
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("body[data-drawn=yes]", timeout=300_000)
        page.wait_for_timeout(1_000)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, drawn after {costs.so_far():.0f} ms")
        measure_place(page, costs, "coarsest level", "#graph")
        last = page.locator("#level option").count() - 1
        drawn = costs.of(lambda: page.select_option("#level", index=last), wait=500)
        print(f"finest level: drawn in {drawn:.0f} ms")
        measure_place(page, costs, "finest level", "#graph")
        measure_place(page, costs, "two steps", "#steps")
        drawn = costs.of(lambda: page.select_option("#upper", index=1), wait=500)
        print(f"another step: drawn in {drawn:.0f} ms")
        measure_place(page, costs, "with another step", "#steps")
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

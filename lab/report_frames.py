"""What a report costs a browser: ``python lab/report_frames.py report.html`` prints it.

With a folder, as in ``python lab/report_frames.py report.html docs``, it only writes the top of the
report there, as ``report-light.png`` and ``report-dark.png``.

Times are those that the page's main thread was busy until the page is drawn, so that what else the
machine does is not in them.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright


def busy_milliseconds(browser: Browser, path: Path) -> float:
    """Return how long the main thread of a page is busy until a report is drawn."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("body[data-drawn=yes]", timeout=300_000)
    page.wait_for_timeout(1_000)
    metrics = session.send("Performance.getMetrics")["metrics"]
    seconds = {metric["name"]: float(metric["value"]) for metric in metrics}
    return 1_000 * seconds["TaskDuration"]


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
        else:
            size, busy = path.stat().st_size / 1e6, busy_milliseconds(browser, path)
            print(f"{path}: {size:.1f} MB, drawn after {busy:.0f} ms")
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

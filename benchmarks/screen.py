"""Runs the README's main command and writes its output and a screenshot of its dashboard to the README.

    python -m benchmarks.screen [--chromium /usr/bin/chromium]

The screenshot needs playwright and a browser; without --chromium only the output is written.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import README, ROOT, provenance, write_section

COMMAND = ["sca-search", "--target-sparsity", "0.5"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chromium")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "sca_search", *COMMAND[1:]],
            cwd=folder,
            env=os.environ | {"COLUMNS": "100", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = done.stdout.rstrip().splitlines()
        screen = "\n".join(line.rstrip() for line in ["$ " + " ".join(COMMAND), *lines])
        write_section(README, "screen", f"```text\n{screen}\n```\n\n{provenance()}")
        if arguments.chromium:
            _picture(next(Path(folder).glob("runs/*/dashboard.html")), arguments.chromium)


def _picture(page: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only for a screenshot

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1240, "height": 1180})
        tab.goto(page.as_uri())
        tab.wait_for_selector("body[data-ready=yes]")
        tab.wait_for_timeout(1500)  # loads figures just below the visible part
        tab.screenshot(path=ROOT / "docs" / "dashboard.png")
        browser.close()


if __name__ == "__main__":
    main()

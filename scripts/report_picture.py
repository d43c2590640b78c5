"""Writes the picture of the README: the head of the HTML page of the run that the README shows.

python scripts/report_picture.py            # writes docs/report.png; needs chromium
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from draftbench.cli import main as draftbench

ROOT = Path(__file__).parents[1]
REFERENCE = "results/reference/tinyllama-stories-40"
WIDTH, HEIGHT = 1080, 1190


def main() -> None:
    """Render the page and photograph its head."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no chromium or google-chrome on the path")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        with contextlib.chdir(ROOT):
            draftbench(["report", REFERENCE, "--html", str(page)])
        picture = ROOT / "docs" / "report.png"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        where = [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}"]
        words = [browser, *flags, *where, f"--screenshot={picture}", page.as_uri()]
        subprocess.run(words, check=True, capture_output=True, timeout=120)
    print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Kills draftbench at random moments while it starts, asks and ends a real llama-server, and looks
whether a process is left.

    python scripts/kill_engine.py LLAMA_SERVER [TIMES]
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import psutil
from embedded_gguf import write_family

MOST_SECONDS = 30.0  # until everything must be gone
PROGRAM = """
import json, sys, urllib.request
from pathlib import Path
from draftbench.engines.start import Start, speculation, started

server, models = sys.argv[1], Path(sys.argv[2])
drafts = speculation(str(models / "distilled.gguf"), 4)
settings = Start("llama.cpp", str(models / "target.gguf"), drafts, command=server, threads=1)
body = json.dumps({"prompt": "import os\\n", "n_predict": 100, "temperature": 0}).encode()
while True:
    print("starting", flush=True)
    with started(settings, models) as running:
        print("asking", flush=True)
        for _ in range(3):
            urllib.request.urlopen(f"{running.url}/completion", body).read()
        print("ending", flush=True)
"""


def main(server: str, times: int) -> int:
    """Print a line per kill; how many left a process."""
    draws, left = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        write_family(Path(folder))
        print(
            f"{'killed after s':>14}  {'while':<9}{'processes':>9}{'left':>5}{'gone after s':>13}"
        )
        for _ in range(times):
            left += _kill(server, folder, draws.uniform(0.3, 2.5)) > 0
    print(f"{left} of {times} left a process")
    return left


def _kill(server: str, folder: str, after: float) -> int:
    mark = uuid4().hex
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server, folder],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"MARK": mark},
    )
    time.sleep(after)
    processes = _marked(mark)
    parent.send_signal(signal.SIGKILL)
    said, _ = parent.communicate()
    begun = time.monotonic()
    while (alive := _marked(mark)) and time.monotonic() - begun < MOST_SECONDS:
        time.sleep(0.02)
    last = (said.split() or ["importing"])[-1]
    gone = time.monotonic() - begun
    print(f"{after:>14.2f}  {last:<9}{processes:>9}{alive:>5}{gone:>13.2f}", flush=True)
    return alive


def _marked(mark: str) -> int:
    """Processes that inherited this mark."""
    return sum(_mark_of(process) == mark for process in psutil.process_iter())


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("MARK")
    except psutil.Error:
        return None


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int((sys.argv[2:] or ["20"])[0])) > 0)

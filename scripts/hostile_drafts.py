"""Sweeps broken and hostile drafts, each in a separate process, and prints what a user reads of
each.

    python scripts/hostile_drafts.py [--workers 2]

The drafts are copies of the embedded one: weights cut, missing, NaN or promising petabytes; files
that are pipes or never end; an unknown architecture; no tokenizer; and, with `--trust-remote-code`
open, checkpoints whose code kills, aborts or leaves its process, never returns, leaves another
process behind that holds its pipe, or asks for 4 GiB where 2 GiB are allowed. Leaves with 1 if the
good draft among them was not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from silence import Silence

import draftbench
from draftbench.hub import Trust
from draftbench.records import Candidate
from draftbench.run_folder.run import read_run
from draftbench.sweep import SweepOptions, prepare
from draftbench.sweep.measure import measure_sweep
from draftbench.sweep.options import workers_named
from draftbench.traffic import TrafficQuery

MODELS = Path(draftbench.__file__).parent / "embedded"
SECONDS = 30.0
PROGRAMS = {
    "kills-itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "aborts": "import os; os.abort()",
    "leaves": "import sys; sys.exit(0)",
    "never-ends": "import time; time.sleep(3600)",
    "leaves-a-child": "import os, time; os.fork() and os._exit(0); time.sleep(300)",
    "asks-for-4-GiB": """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), used + (2 << 30)))
import torch
torch.empty(1 << 30, dtype=torch.float32)
""",
}


def bring_code(model: Path, program: str) -> None:
    module = "modeling_" + "".join(filter(str.isalnum, model.name))
    change_config(model, auto_map={"AutoModelForCausalLM": f"{module}.Model"})
    (model / f"{module}.py").write_text(program)


def change_config(model: Path, **changes: object) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))


def cut(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def poison(model: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = {name: w * float("nan") for name, w in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def replace(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replaced(model: Path) -> None:
        (model / name).unlink()
        make(model / name)

    return replaced


def unlink(pattern: str) -> Callable[[Path], None]:
    return lambda model: [file.unlink() for file in model.glob(pattern)] and None


BROKEN: dict[str, Callable[[Path], None]] = {
    "weights-cut": cut,
    "weights-missing": unlink("*.safetensors"),
    "weights-nan": poison,
    "weights-of-petabytes": replace("model.safetensors", lambda f: f.write_bytes(b"\xff" * 64)),
    "config-is-a-pipe": replace("config.json", os.mkfifo),
    "tokenizer-without-end": replace("tokenizer.json", lambda f: f.symlink_to("/dev/zero")),
    "unknown-architecture": lambda model: change_config(model, model_type="mindreader"),
    "a-billion-layers": lambda model: change_config(model, num_hidden_layers=10**9),
    "leads-elsewhere": lambda model: (
        (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../b"}}')
        and None
    ),
    "recurrent-layers": lambda model: change_config(model, model_type="mamba"),
    "no-tokenizer": unlink("tokenizer*"),
    "config-cut": lambda model: (model / "config.json").write_text('{"model_type": "ll') and None,
    **{
        name: lambda model, program=program: bring_code(model, program)
        for name, program in PROGRAMS.items()
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--workers", type=workers_named, default=1, help="a number, or ray")
    workers = parser.parse_args().workers
    with tempfile.TemporaryDirectory() as place:
        os.environ["HF_MODULES_CACHE"] = f"{place}/modules"
        drafts = []
        for name, breaking in BROKEN.items():
            drafts.append(Path(place) / name)
            breaking(Path(shutil.copytree(MODELS / "draft", drafts[-1])))
        options = SweepOptions(
            target=str(MODELS / "target"),
            drafts=(*map(str, drafts), str(MODELS / "draft")),
            traffic=TrafficQuery("suite:completion", b"key", 3),
            ks=(1, 2),
            max_new_tokens=16,
            measure="none",
            controls=False,
            threads=1,
            candidate_timeout=SECONDS,
            workers=workers,
            trust=Trust(remote_code=True),
        )
        folder = measure_sweep(
            prepare(options, "hostile drafts", Silence()), Path(place) / "run", Silence()
        )
        found = read_run(folder)
    print("| draft | what the run says of it | hint |\n|---|---|---|")
    for failure in found.failures:
        reason = failure.reason.replace(f"{place}/", "")
        print(f"| {failure.candidate} | {reason} | {failure.hint} |")
    measured = ", ".join(map(str, found.candidates))
    print(f"{len(found.failures)} failed; measured: {measured}")
    failed = {failure.candidate.draft for failure in found.failures}
    good = found.candidates == (Candidate(draft="draft"),) and failed == {*BROKEN}
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Checks that `draftbench audit` calls sound engines sound, and how long it takes.

    DRAFTBENCH_VLLM_PYTHON=… DRAFTBENCH_LLAMA_SERVER=… python scripts/check_audit.py OUT

sweeps the embedded models on vLLM (in float32 and bfloat16) and on llama-server (in float32,
float16 and bfloat16), into run folders in OUT that a second call goes on with. vLLM is not asked
for a block drafter: its CPU build (0.32) norms the keys of all layers by the first one's weights.
Each line is a draft: what was compared, the verdict, the seconds of the audit, and those of loading
and replaying the same responses once. Exits with 1 if one is not sound, or more than a hundredth of
its rounds are unexplained.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from embedded_gguf import KINDS, write_family

from draftbench.audit.audit import CandidateAudit, audit
from draftbench.audit.replaying import replaying
from draftbench.cli import main as draftbench
from draftbench.measure.trajectories import recorded_responses
from draftbench.records import Candidate
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

EMBEDDED = Path(str(files("draftbench") / "embedded"))
HOW = (
    *("--k", "1,3,5", "--measure", "all", "--no-controls", "--concurrency", "1", "--threads", "1"),
    *("--traffic", "suite:completion", "--sample", "24", "--max-new-tokens", "48"),
)
IN_FLOAT32 = "-ctk f32 -ctv f32 -ctkd f32 -ctvd f32 -fa off"


def main() -> int:
    out, wrong = Path(sys.argv[1]), 0
    print("engine     type      draft      compared  differ  near ties  verdict  audit  a replay")
    for engine, dtype, run in runs(out):
        for candidate in run.candidates:
            found, seconds = audited(run, candidate, dtype)
            tally, name = found.tally, candidate.draft.partition(":")[0]
            print(
                f"{engine:10} {dtype:9} {name:10} {tally.compared:8} {tally.differ:7} "
                f"{tally.near_ties:10}  {found.verdict:7} {seconds:5.1f} s "
                f"{replayed(run, candidate):6.1f} s",
                flush=True,
            )
            wrong += found.verdict != "sound" or tally.differ * 100 > tally.compared
    return 1 if wrong else 0


def runs(out: Path) -> Iterator[tuple[str, str, Run]]:
    """Sweeps that an engine drafts, with its name and number type."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if python := os.environ.get("DRAFTBENCH_VLLM_PYTHON"):
        command = f"{python} -m vllm.entrypoints.openai.api_server {{args}}"
        for dtype in ("float32", "bfloat16"):
            drafts = [EMBEDDED / "draft", EMBEDDED / "distilled", f"eagle3:{EMBEDDED / 'head'}"]
            how = ("--dtype", dtype, "--engine-args", "--enforce-eager")
            yield swept(out, "vllm", dtype, command, EMBEDDED / "target", drafts, *how)
    if server := os.environ.get("DRAFTBENCH_LLAMA_SERVER"):
        for dtype, kind in (("float32", "f32"), ("float16", "f16"), ("bfloat16", "bf16")):
            gguf = out / f"gguf-{kind}"
            if not gguf.exists():
                write_family(gguf, KINDS[kind])
            drafts = [gguf / "draft.gguf", f"eagle3:{gguf}/head.gguf", f"dflash:{gguf}/block.gguf"]
            # The replay's type; the server computes in that of its weights, and keeps keys and
            # values in float16 unless it is told otherwise.
            how = ["--dtype", "bfloat16" if dtype == "bfloat16" else "float32"]
            how += [f"--engine-args={IN_FLOAT32}"] if dtype == "float32" else []
            yield swept(out, "llama.cpp", dtype, server, gguf / "target.gguf", drafts, *how)


def swept(
    out: Path, engine: str, dtype: str, command: str, target: Path, drafts: list[object], *how: str
) -> tuple[str, str, Run]:
    folder, named = out / f"{engine}-{dtype}", ",".join(map(str, drafts))
    asked = ("--engine", engine, "--engine-command", command, "--target", target, "--drafts", named)
    code = draftbench(["sweep", *map(str, (*asked, *HOW, *how)), "--out", str(folder)])
    if code not in (0, 3):
        raise SystemExit(f"the sweep on {engine} in {dtype} ended with {code}")
    return engine, dtype, read_run(RunFolder(folder))


def audited(run: Run, candidate: Candidate, dtype: str) -> tuple[CandidateAudit, float]:
    begun = time.monotonic()
    (found,) = audit(run, [candidate], dtype=dtype).candidates
    return found, time.monotonic() - begun


def replayed(run: Run, candidate: Candidate) -> float:
    """The seconds of loading a draft and replaying all of a run's responses."""
    begun = time.monotonic()
    loaded = replaying(run, candidate)
    responses = list(recorded_responses(run, "to replay"))
    loaded.replay(loaded.draft, responses, run.manifest.question.ks, stops=False)
    return time.monotonic() - begun


if __name__ == "__main__":
    raise SystemExit(main())

"""Checks that the gate catches faults planted in a real llama-server, and passes servers without
one: acceptance at temperature 0, one request at a time.

    python scripts/check_engine_gate.py LLAMA_SERVER [--sound 20] [--requests 60]

The models are the embedded ones. Their keys have no outliers, so a 4-bit cache hardly changes their
acceptance. The draft's keys are therefore given outliers, as Qwen's have; queries are divided by
the same factors, so that nothing else changes. Each line is one start of a server. Exits with 1 if
a fault was not caught, a sound server failed, or fewer than three quarters of the sound ones
passed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import keyword
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from embedded_gguf import write, write_family
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from draftbench.cli import main as draftbench
from draftbench.drafts.speculation import Speculation
from draftbench.engines.engine import ServerStart
from draftbench.engines.start import started
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import read_run

K = 4
# The first token is the one that the embedded models know as the end of a text before.
TEMPLATE = "<|endoftext|>{% for message in messages %}{{ message.content }}{% endfor %}"
VERDICTS = {0: "pass", 1: "fail", 2: "error", 3: "inconclusive", 4: "incomparable"}
MODULES = (argparse, contextlib, inspect, json, keyword, tempfile, textwrap)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("server", help="llama-server")
    parser.add_argument("--sound", type=int, default=20, help="starts with nothing planted")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=48, help="of each response")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return Trial(Path(folder), asked).run()


def template(text: str) -> str:
    """The flags that make a llama-server render chats with it."""
    return f"--jinja --chat-template '{text}'"


@dataclass(frozen=True)
class Fault:
    """A planted fault, and the exit code that is right for it."""

    name: str
    draft: str
    args: str
    code: int = 1
    said: str = ""


FAULTS = (
    Fault("draft's keys at 4 bits", "outliers", "--cache-type-k-draft q4_0"),
    Fault(
        "draft's keys and values at 4 bits",
        "outliers",
        "--cache-type-k-draft q4_0 --cache-type-v-draft q4_0 --flash-attn on",
    ),
    Fault("another draft", "draft", ""),
    Fault("draft of another vocabulary", "foreign", "", 2, "drafts nothing"),
    Fault("first token doubled", "outliers", template("<|endoftext|>" + TEMPLATE), 2, "twice"),
)


class Trial:
    """A sound server's baseline, against which the gate judges other servers."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        self.folder, self.asked = folder, asked
        self.models, self.baseline = folder / "models", folder / "baseline.json"
        self.traffic = folder / "traffic.jsonl"
        write_family(self.models)
        write_with_outliers(self.models / "outliers.gguf", folder / "outliers")
        rows = [
            {
                "id": f"r{number}",
                "messages": [{"role": "user", "content": text}],
                "temperature": 0,
                "max_tokens": asked.tokens,
            }
            for number, text in enumerate(passages(asked.requests))
        ]
        self.traffic.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self) -> int:
        self._save()
        missed = sum(not self._caught(fault) for fault in FAULTS)
        found = Counter[str]()
        for number in range(1, self.asked.sound + 1):
            code, said = self._gate("outliers", "")
            found[VERDICTS.get(code, str(code))] += 1
            print(f"{f'sound start {number}':<36}{VERDICTS.get(code, code):<14}{said}", flush=True)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in found.most_common())
        print(f"{missed} planted faults were not caught; {self.asked.sound} sound starts: {counts}")
        failed = self.asked.sound - found["pass"] - found["inconclusive"]
        return int(missed > 0 or failed > 0 or found["pass"] < 0.75 * self.asked.sound)

    def _caught(self, fault: Fault) -> bool:
        code, said = self._gate(fault.draft, fault.args)
        print(f"{fault.name:<36}{VERDICTS.get(code, code):<14}{said}", flush=True)
        return code == fault.code and fault.said in said

    def _save(self) -> None:
        """The baseline of a sound server."""
        run = self.folder / "run"
        with started(self._start("outliers", ""), self.folder) as server:
            _must(*self._sweep(server.url, run))
        name = _candidate(run)
        _must("gate", "--save", str(self.baseline), str(run), "--candidate", name, "--k", str(K))

    def _sweep(self, url: str, run: Path) -> list[str]:
        words = ["sweep", "--server", url, "--out", str(run), "--no-controls"]
        return [*words, "--traffic", str(self.traffic), "--quiet", "-o", f"{run}.txt"]

    def _gate(self, draft: str, args: str) -> tuple[int, str]:
        """Start a server and judge it: the gate's exit code, with its reason or figures."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as own,
            started(self._start(draft, args), Path(own)) as server,
        ):
            code, out, err = _quietly(*self._sweep(server.url, Path(own) / "run"))
            if code == 0:
                words = ["gate", "--baseline", str(self.baseline), f"{own}/run"]
                code, out, err = _quietly(*words, "--format", "json")
        if not out:
            return code, next((x for x in err.splitlines() if x.startswith("error: ")), err)
        checks = [check for check in json.loads(out)["checks"] if check["segment"] is None]
        return code, "; ".join(
            f"{c['metric']} {c['old']['value']:.3f} → {c['new']['value']:.3f}" for c in checks
        )

    def _start(self, draft: str, args: str) -> ServerStart:
        drafts = Speculation("draft-model", str(self.models / f"{draft}.gguf"), K)
        return ServerStart(
            engine="llama.cpp",
            target=str(self.models / "target.gguf"),
            speculation=drafts,
            args=args if "--chat-template" in args else f"{template(TEMPLATE)} {args}",
            command=f"{self.asked.server} {{args}}",
            context_length=512,
            threads=1,
        )


def write_with_outliers(path: Path, folder: Path) -> None:
    """The distilled draft with two dimensions of every head's keys 64 times as large, one for each
    block that llama.cpp quantizes.
    """
    distilled = Path(str(files("draftbench"))) / "embedded" / "distilled"
    shutil.copytree(distilled, folder)
    tensors = load_file(distilled / "model.safetensors")
    half = json.loads((distilled / "config.json").read_text())["head_dim"] // 2
    for name, weight in tensors.items():
        factor = {"k_proj": 64.0, "q_proj": 1 / 64}.get(name.split(".")[-2])
        if factor is not None:
            heads = weight.view(-1, 2, half, weight.shape[1])  # rotated: i and i + half
            heads[:, :, [half // 2 - 1, half - 1]] *= factor
    save_file(tensors, folder / "model.safetensors")
    write(path, folder, GGMLQuantizationType.F32)


def passages(count: int) -> list[str]:
    """The beginnings of functions of the standard library."""
    found = []
    for module in MODULES:
        lines = inspect.getsource(module).splitlines()
        starts = [n for n, line in enumerate(lines) if line.lstrip().startswith("def ")]
        found += ["\n".join(lines[max(0, n - 6) : n + 2]) + "\n" for n in starts]
    if len(found) < count:
        raise SystemExit(f"there are {len(found)} prompts, not {count}")
    step = len(found) / count
    return [found[int(n * step)] for n in range(count)]


def _candidate(run: Path) -> str:
    (candidate,) = read_run(RunFolder(run)).candidates
    return str(candidate)


def _must(*words: str) -> None:
    code, _, err = _quietly(*words)
    if code:
        raise SystemExit(f"draftbench {' '.join(words)}: {err}")


def _quietly(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = draftbench(words)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    sys.exit(main())

"""Checks the verdict of `draftbench gate` on changes that break acceptance in practice.

    python scripts/real_regressions.py                        # the pair that ships with the package
    python scripts/real_regressions.py --models DIR --target qwen1.5 --draft qwen0.5 \
        --traffic prod.jsonl

One sweep is saved as the baseline. Then one thing at a time is changed, and judged by the command
line with the default limits. A modified model is a folder with links to the original's files and
the changed one. A target without a chat template gets one that writes the messages' content alone,
and plain prompts become messages. Only acceptance is measured, no times.

Exits with 1 if a verdict is not right for its change.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from draftbench.run_folder.key import request_key
from draftbench.traffic import TrafficQuery, load

TEMPLATE = "chat_template.jinja"
PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
# A template of another family: to this target its markers are text like any other.
FOREIGN = "{% for message in messages %}[INST] {{ message.content }} [/INST]{% endfor %}"
VERDICTS = {0: "pass", 1: "fail", 3: "inconclusive", 4: "incomparable"}


@dataclass(frozen=True)
class Case:
    """A change, the exit codes that are right for it, and the words of its command line."""

    name: str
    right: tuple[int, ...]
    words: tuple[str, ...]


class Bench:
    """A folder with the changed models and runs; commands run in it, one process each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"DRAFTBENCH_KEY": "real regressions"}
        os.environ["DRAFTBENCH_KEY"] = self.environment["DRAFTBENCH_KEY"]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "draftbench", *words]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, check=False
        )

    def must(self, *words: str) -> None:
        done = self.run(*words)
        if done.returncode not in (0, 1):
            raise SystemExit(f"draftbench {' '.join(words)}\n{done.stderr}")

    def with_template(self, source: Path, name: str, template: str) -> Path:
        """The model with another chat template."""
        copy = self.folder / name / source.name
        copy.mkdir(parents=True)
        for file in source.iterdir():
            if file.is_file() and file.name != TEMPLATE:
                (copy / file.name).symlink_to(file.resolve())
        (copy / TEMPLATE).write_text(template)
        return copy


def random_copy(source: Path, folder: Path) -> Path:
    """The same shape with weights that were never trained."""
    copy = folder / "random"
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(source), dtype=torch.bfloat16
    )
    model.save_pretrained(copy)
    for file in source.resolve().iterdir():
        weights = file.suffix in {".safetensors", ".bin"} or ".index." in file.name
        if file.is_file() and not weights and not (copy / file.name).exists():
            (copy / file.name).symlink_to(file)
    return copy


def first_token(tokenizer: Any) -> str:
    """The special token that a prompt begins with, or else the tokenizer's BOS or EOS."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_dict=False
    )
    text = tokenizer.convert_ids_to_tokens(ids[0])
    if text in tokenizer.get_added_vocab():
        return str(text)
    return str(tokenizer.bos_token or tokenizer.eos_token)


def as_messages(source: str, file: Path, count: int) -> None:
    """A sample of the traffic as chat requests, each with its settings."""
    query = TrafficQuery(source, request_key(), count)
    rows = []
    for request in load(query).requests:
        plain = ({"role": "user", "content": request.prompt},)
        row = {
            "messages": request.messages or plain,
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "segment": request.segment,
        }
        rows.append(json.dumps({name: value for name, value in row.items() if value is not None}))
    file.write_text("\n".join(rows) + "\n")


def prepared(bench: Bench, options: argparse.Namespace) -> tuple[Path, str, Path]:
    """The target with a chat template, the special token its prompts begin with, the traffic."""
    target = (options.models / options.target).resolve()
    tokenizer: Any = AutoTokenizer.from_pretrained(target)
    template = tokenizer.chat_template
    if template is None:
        special = str(tokenizer.bos_token or tokenizer.eos_token)
        template = special + PLAIN
        target = bench.with_template(target, "templated", template)
        tokenizer = AutoTokenizer.from_pretrained(target)
    traffic = bench.folder / "traffic.jsonl"
    as_messages(options.traffic, traffic, options.requests)
    return target, first_token(tokenizer), traffic


def cases(bench: Bench, options: argparse.Namespace) -> list[Case]:
    """Measure the baseline and lay out what is changed."""
    folder = bench.folder
    target, special, traffic = prepared(bench, options)
    template = str(AutoTokenizer.from_pretrained(target).chat_template)
    draft = (options.models / options.draft).resolve()
    random = random_copy(draft, folder)
    base, pinned = folder / "base", folder / "baseline.json"
    sweep = ["sweep", "--target", str(target), "--drafts", str(draft), "--drafts", str(random)]
    sweep += ["--quant", "none,int4", "--traffic", str(traffic), "--k", str(options.k)]
    sweep += ["--max-new-tokens", str(options.tokens), "--measure", "replay", "--no-controls"]
    bench.must(*sweep, "--threads", str(options.threads), "--out", str(base))
    bench.must(
        *("gate", "--save", str(pinned), str(base)),
        *("--candidate", draft.name, "--k", str(options.k)),
    )
    other = folder / "other.jsonl"
    as_messages("suite:stories", other, options.requests)
    twice = "{{ " + json.dumps(special) + " }}" + template
    doubled = bench.with_template(target, "doubled", twice)
    foreign = bench.with_template(target, "foreign", FOREIGN)
    against = ("gate", "--baseline", str(pinned))

    def measured(model: Path, rows: Path, *more: str) -> tuple[str, ...]:
        words = ("--target", str(model), "--draft", str(draft), "--traffic", str(rows))
        out = ("--threads", str(options.threads), "--out", str(folder / f"run-{model.parent.name}"))
        return (*against, *words, *out, *more)

    print(f"target {target.name}, draft {draft.name}, {options.requests} requests of")
    print(f"{options.traffic}, {options.tokens} tokens each, k = {options.k}; special token")
    print(f"that is doubled: {special}\n")
    return [
        Case("nothing", (0,), measured(target, traffic)),
        Case("int4 draft", (0, 3), (*against, str(base), "--candidate", f"{draft.name}:int4")),
        Case("draft of random weights", (1,), (*against, str(base), "--candidate", "random")),
        Case("first token doubled", (1, 3), measured(doubled, traffic)),
        Case("template of another family", (1, 3), measured(foreign, traffic)),
        Case("another temperature", (4,), measured(target, traffic, "--temperature", "1.3")),
        Case("other traffic", (4,), measured(target, other)),
    ]


def judged(bench: Bench, case: Case) -> bool:
    """Run one case and print its line; whether the verdict is right."""
    verdict = bench.folder / "verdict.json"
    done = bench.run(*case.words, "--format", "json", "-o", str(verdict))
    right = done.returncode in case.right
    said = VERDICTS.get(done.returncode, f"exit {done.returncode}")
    head = f"{case.name:27} {'' if right else 'WRONG: '}{said} ({done.returncode})"
    if done.returncode not in (0, 1, 3):
        error = next((x for x in done.stderr.splitlines() if x.startswith("error:")), done.stderr)
        print(f"{head}\n{textwrap.indent(textwrap.fill(error, 92), '    ')}", flush=True)
        return right
    result = json.loads(verdict.read_text())
    changes = []
    for check in result["checks"]:
        if check["segment"] is None and check["metric"] != "tokens_per_round":
            name = {"alpha": "α", "mean_accepted_length": "τ"}[check["metric"]]
            changes.append(f"{name} {check['old']['value']:.3f} → {check['new']['value']:.3f}")
    print(f"{head:50} {', '.join(changes)}", flush=True)
    for note in result["notes"]:
        print(textwrap.indent(textwrap.fill(note, 92), "    "), flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    embedded = Path(str(files("draftbench"))) / "embedded"
    parser.add_argument("--models", type=Path, default=embedded, metavar="DIR")
    parser.add_argument("--target", default="target", help="its folder in DIR")
    parser.add_argument("--draft", default="draft", help="its folder in DIR")
    parser.add_argument("--traffic", default="suite:completion")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48, help="length limit of every response")
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder).resolve())
        found = [judged(bench, case) for case in cases(bench, options)]
    return 0 if all(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())

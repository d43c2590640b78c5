"""Checks that greedy speculation writes, token by token, what transformers' `generate` writes.

    python scripts/check_greedy.py TARGET [--draft DIR ...] [--traffic FILE]

The target runs in float32. Besides the drafts given it is checked with itself, with its int4 copy,
with the first half of its layers and with prompt lookup. The first difference of a request is a
near tie if transformers' two best logits lie within 0.001 there, and a fault otherwise. "Rejecting"
counts the requests in which a proposal was rejected: without one no cache was rolled back. Exits
with 1 on a fault.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from draftbench.decoder.drafters import Drafter
from draftbench.decoder.runner import DecodeTask, HostClock, Response, Runner
from draftbench.decoder.sampling import Uniforms, top_two_margin
from draftbench.decoder.speculate import decode_all
from draftbench.drafts.lookup.draft import LookupDrafter
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.measure.prompts import TargetText
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import NEAR_TIE_MARGIN, DraftingMode, Sampling
from draftbench.run_folder.key import request_key
from draftbench.traffic import TrafficQuery, load

GREEDY = Sampling()
LOOKUP_SIZES = (4, 2)


@dataclass(frozen=True)
class Reference:
    """What transformers wrote after a prompt, and the distance of its two best logits at each
    token.
    """

    prompt: list[int]
    tokens: list[int]
    margins: list[float]


@dataclass
class Tally:
    """One draft's requests, by how they ended."""

    equal: int = 0
    ties: int = 0
    faults: list[str] = field(default_factory=list)
    rejecting: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0

    def add(self, index: int, reference: Reference, response: Response) -> None:
        self.rounds += len(response.proposed)
        self.proposed += sum(response.proposed)
        self.accepted += sum(response.accepted)
        standing = sum(response.accepted) + sum(response.cut)
        self.rejecting += standing < sum(response.proposed)
        position = first_difference(reference.tokens, response.tokens)
        if position is None:
            self.equal += 1
            return
        has_margin = position < len(reference.margins)
        if has_margin and reference.margins[position] <= NEAR_TIE_MARGIN["float32"]:
            self.ties += 1
            return
        margin = f"{reference.margins[position]:.4f}" if has_margin else "none, one ended"
        self.faults.append(f"request {index}, token {position}, margin {margin}")


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two sequences differ, perhaps the end of the shorter one."""
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def prompts(source: ModelSource, traffic: str, count: int, limit: int) -> list[list[int]]:
    """The first `count` requests of a sample that leave room for `limit` tokens."""
    query = TrafficQuery(traffic, request_key(), 2 * count)
    context = source.config.get_text_config().max_position_embeddings
    text = TargetText(source)
    rendered = [text.prompt(request, limit, context) for request in load(query).requests]
    return [p.tokens for p in rendered if p and len(p.tokens) + limit <= context][:count]


def references(
    source: ModelSource, asked: list[list[int]], limit: int, ends: frozenset[int]
) -> list[Reference]:
    """transformers' greedy responses in float32, without a checkpoint's own penalties."""
    model: Any = source.load(torch.float32, "cpu")
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=limit,
        eos_token_id=sorted(ends),
        pad_token_id=min(ends),
        output_logits=True,
        return_dict_in_generate=True,
    )
    found = []
    for tokens in asked:
        ids = torch.tensor([tokens])
        made = model.generate(ids, attention_mask=torch.ones_like(ids))
        margins = [float(top_two_margin(step)) for step in made.logits]
        found.append(Reference(tokens, made.sequences[0, len(tokens) :].tolist(), margins))
    return found


def half_of(source: ModelSource, folder: Path) -> ModelSource:
    """The model of the first half of the layers, as a checkpoint."""
    original = Path(source.spec).expanduser().resolve()
    config = json.loads((original / "config.json").read_text())
    layers = config["num_hidden_layers"] = config["num_hidden_layers"] // 2
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:layers]
    (folder / "config.json").write_text(json.dumps(config))
    weights = {}
    for file in original.iterdir():
        if file.suffix == ".safetensors":
            for name, tensor in load_file(file).items():
                layer = re.search(r"\.(\d+)\.", name)
                if layer is None or int(layer[1]) < layers:
                    weights[name] = tensor
        elif file.name not in ("config.json", "model.safetensors.index.json"):
            (folder / file.name).symlink_to(file)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return ModelSource(str(folder))


def drafts(
    source: ModelSource, target: Runner, others: Sequence[str]
) -> Iterator[tuple[str, Runner | None]]:
    """Names and runners, one at a time in memory; None is prompt lookup."""
    plain, small = Build(torch.float32, "none", "cpu"), Build(torch.bfloat16, "int4", "cpu")
    yield "self", target
    yield "int4 copy", build_runner(source, small, "int4")[0]
    with tempfile.TemporaryDirectory() as folder:
        half, _ = build_runner(half_of(source, Path(folder)), plain, "half")
        yield "first half of layers", half
    yield "ngram", None
    for spec in others:
        other = ModelSource(spec)
        yield other.name, build_runner(other, plain, other.name)[0]


def check(
    draft: Runner | None,
    target: Runner,
    known: list[Reference],
    how: tuple[int, int],
    task: tuple[int, Any],
) -> Tally:
    """Decode every request with one draft; `how` is k and the rows that decode together, `task`
    the length limit and the end tokens.
    """
    (k, rows), (limit, ends) = how, task
    tasks = [
        DecodeTask(
            reference.prompt,
            limit,
            GREEDY,
            Uniforms(str(index), 0, limit + 1),
            lambda out: out[-1] in ends,
        )
        for index, reference in enumerate(known)
    ]
    drafter: Drafter = LookupDrafter(*LOOKUP_SIZES, target.device)
    if draft is not None:
        drafter = ModelDrafter(draft, DraftingMode.GREEDY)
    responses = decode_all(tasks, target, drafter, k, HostClock(), rows)
    tally = Tally()
    for index, (reference, response) in enumerate(zip(known, responses, strict=True)):
        tally.add(index, reference, response)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("target")
    parser.add_argument("--draft", action="append", default=[], metavar="DIR")
    parser.add_argument("--traffic", default="suite:completion")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96, help="length limit of every response")
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--rows", default="1", help="responses decoded together, e.g. 1,4,16")
    options = parser.parse_args()
    source = ModelSource(options.target)
    ends = TargetText(source).end_tokens
    asked = prompts(source, options.traffic, options.requests, options.tokens)
    known = references(source, asked, options.tokens, ends)
    target, _ = build_runner(source, Build(torch.float32, "none", "cpu"), None)
    total = sum(len(reference.tokens) for reference in known)
    print(f"{source.name}, float32, {target.name}; {options.traffic}")
    print(
        f"{len(known)} requests, {total} tokens of transformers' greedy generate, k = {options.k}"
    )
    head = f"{'draft':22}{'rows':>5}{'equal':>7}{'ties':>6}{'faults':>8}{'rejecting':>11}"
    print(head + f"{'rounds':>8}{'proposed':>10}{'accepted':>10}")
    faulty = False
    concurrency = [int(rows) for rows in options.rows.split(",")]
    every = ((one, rows) for one in drafts(source, target, options.draft) for rows in concurrency)
    for (name, draft), rows in every:
        tally = check(draft, target, known, (options.k, rows), (options.tokens, ends))
        ends_of = f"{tally.equal:7}{tally.ties:6}{len(tally.faults):8}{tally.rejecting:11}"
        counts = f"{tally.rounds:8}{tally.proposed:10}{tally.accepted:10}"
        print(f"{name:22}{rows:5}{ends_of}{counts}", flush=True)
        for fault in tally.faults:
            print(f"    fault: {fault}")
        faulty |= bool(tally.faults)
    return int(faulty)


if __name__ == "__main__":
    raise SystemExit(main())

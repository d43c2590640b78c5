"""Trains the embedded model family on the Python standard library's source.

Turns the ``*.py`` files of the running interpreter into four Llama directories that transformers
loads: ``target``; ``draft`` (same recipe, smaller); ``distilled`` (fitted to the target's
distribution, half of it on text that the target wrote); ``foreign`` (another tokenizer: a draft to
be refused). Schedules run by wall-clock time, so a faster machine trains longer, not shorter; the
weights are therefore not reproducible bit by bit.

    python scripts/train_embedded.py --out draftbench/embedded --minutes 100

Every step leaves its result under ``--work`` and is skipped when that is there; training goes on
from its last checkpoint. ``--only corpus target ...`` runs single steps.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from embedded_family import (
    BATCH,
    CONTEXT,
    PROMPT_TOKENS,
    SPECS,
    WINDOW,
    Spec,
    greedy,
    load,
    prepare_corpus,
)
from embedded_report import report

WRITING_SHARE = 0.04  # of the training time, for the target to write text to distil from


def windows(stream: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Endless epochs over the stream, each from another offset: ids [BATCH // CONTEXT, CONTEXT]."""
    rows = BATCH // CONTEXT
    while True:
        starts = np.arange(rng.integers(CONTEXT), len(stream) - CONTEXT, CONTEXT)
        rng.shuffle(starts)
        for at in range(0, len(starts) - rows + 1, rows):
            picked = np.stack([stream[s : s + CONTEXT] for s in starts[at : at + rows]])
            yield picked.astype(np.int64)


def pages(written: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Endless epochs over whole rows of the target's text: ids [BATCH // WINDOW, WINDOW]."""
    while True:
        order = rng.permutation(len(written))
        for at in range(0, len(order) - BATCH // WINDOW + 1, BATCH // WINDOW):
            yield written[order[at : at + BATCH // WINDOW]].astype(np.int64)


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    named = dict(model.named_parameters())
    inner = [p for n, p in named.items() if p.ndim == 2 and "embed" not in n]
    outer = [p for n, p in named.items() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(inner, lr=4e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def objective(
    model: LlamaForCausalLM, teacher: LlamaForCausalLM | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Mean nats per position: cross entropy, or KL(teacher || model) where there is a teacher."""

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, use_cache=False).logits
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(input_ids=ids, use_cache=False).logits
        if teacher is None:
            return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        log_q, log_p = logits.float().log_softmax(-1), wanted.float().log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean()

    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(loss)
    return compiled


def feed_of(spec: Spec, work: Path, rng: np.random.Generator) -> Callable[[float], torch.Tensor]:
    """f(progress) -> ids of one step; distilled models read `written` too."""
    corpus = windows(np.load(work / f"train-{spec.vocab}.npy"), rng)
    written = pages(np.load(work / "written.npy"), rng) if spec.distilled else None
    turn = itertools.count()

    def feed(progress: float) -> torch.Tensor:
        if written is not None and next(turn) % 2:
            return torch.from_numpy(next(written))
        size = WINDOW if progress < 5 / 6 else CONTEXT
        return torch.from_numpy(next(corpus).reshape(-1, size))

    return feed


def train(name: str, work: Path, seconds: float) -> None:
    """Trains one model for `seconds` of its own time and leaves {name}.pt; resumes from it."""
    spec, path = SPECS[name], work / f"{name}.pt"
    model = spec.build()
    model.set_attn_implementation("eager")  # on a CPU the fused kernel's backward pass is slower
    steppers = optimizers(model)
    peaks = [o.param_groups[0]["lr"] for o in steppers]
    spent, tokens = 0.0, 0
    if path.exists():
        state = torch.load(path)
        spent, tokens = state["seconds"], state["tokens"]
        if spent >= seconds:
            return
        model.load_state_dict(state["model"])
        for o, s in zip(steppers, state["optimizers"], strict=True):
            o.load_state_dict(s)
    loss_of = objective(model, load(work, "target") if spec.distilled else None)
    feed = feed_of(spec, work, np.random.default_rng(tokens))
    loss_of(feed(spent / seconds))  # compiles outside the clock
    saved, shown, mean = spent, spent, math.nan
    while spent < seconds:
        began = time.perf_counter()
        done = spent / seconds
        scale = min(1.0, done / 0.02 + 0.02, (1 - done) / 0.9)
        ids = feed(done)
        loss = step(model, loss_of, ids, steppers, [peak * scale for peak in peaks])
        tokens += ids.numel()
        mean = loss if math.isnan(mean) else 0.98 * mean + 0.02 * loss
        spent += min(time.perf_counter() - began, 10.0)  # a recompilation is not training
        if spent - shown > 20:
            shown = spent
            print(f"{name} {done:5.1%} loss {mean:.3f} {tokens / spent:,.0f} tokens/s", flush=True)
        if spent - saved > 120 or spent >= seconds:
            saved = spent
            state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in steppers]}
            torch.save({**state, "seconds": spent, "tokens": tokens}, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)


def step(
    model: LlamaForCausalLM,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    ids: torch.Tensor,
    steppers: list[torch.optim.Optimizer],
    rates: list[float],
) -> float:
    """One update of the model at these learning rates; the loss before it."""
    loss = loss_of(ids)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for stepper, rate in zip(steppers, rates, strict=True):
        for group in stepper.param_groups:
            group["lr"] = rate
        stepper.step()
        stepper.zero_grad()
    return loss.item()


def write(work: Path, seconds: float) -> None:
    """Lets the target go on from random places of the training text: written.npy [n, WINDOW]."""
    target = load(work, "target").bfloat16()
    stream, rng = np.load(work / "train-2048.npy"), np.random.default_rng(1)
    batches: list[np.ndarray] = []
    began = time.perf_counter()
    while not batches or time.perf_counter() - began < seconds:
        starts = rng.integers(len(stream) - PROMPT_TOKENS, size=128)
        prompts = np.stack([stream[s : s + PROMPT_TOKENS] for s in starts])
        batches.append(greedy(target, prompts, WINDOW - PROMPT_TOKENS).astype(np.uint16))
        print(f"written: {128 * len(batches)} rows", flush=True)
    np.save(work / "written.npy", np.concatenate(batches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("draftbench/embedded"))
    parser.add_argument("--work", type=Path, default=Path("build/embedded"))
    parser.add_argument("--minutes", type=float, default=90.0, help="training time of all models")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="run these steps only")
    args = parser.parse_args()
    work, seconds = args.work, 60 * args.minutes
    work.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Callable[[], None]] = {}
    if not (work / "held-2048.npy").exists():
        steps["corpus"] = lambda: prepare_corpus(work)
    for name, spec in SPECS.items():
        if spec.distilled and not (work / "written.npy").exists():
            steps["written"] = lambda: write(work, WRITING_SHARE * seconds)
        steps[name] = partial(train, name, work, spec.share * seconds)
    steps["report"] = lambda: report(work, args.out)
    for name, run in steps.items():
        if args.only is None or name in args.only:
            run()


if __name__ == "__main__":
    # glibc hands large blocks back to the kernel after each use; keeping them saves a fifth.
    keep = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(10**11)}
    if any(os.environ.get(key) != value for key, value in keep.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | keep)
    main()

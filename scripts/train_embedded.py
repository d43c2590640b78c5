"""Trains the embedded model family on the Python standard library's source.

Turns the ``*.py`` files of the running interpreter into four Llama directories that transformers
loads: ``target``; ``draft`` (same recipe, smaller); ``distilled`` (fitted to the target's
distribution, half of it on text that the target wrote); ``foreign`` (another tokenizer, with the
first half of the tokens: a draft to translate); and an EAGLE-3 ``head`` and a DFlash ``block`` that
are fitted as ``distilled`` is. Schedules run by processor time, so a faster machine trains longer,
not shorter; the weights are therefore not reproducible bit by bit.

    python scripts/train_embedded.py --out draftbench/embedded --minutes 100

Every step leaves its result under ``--work`` and is skipped when that is there; training resumes
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
from embedded_block import ROWS as BLOCK_ROWS
from embedded_block import loss_of_blocks, new_block
from embedded_family import (
    BATCH,
    CONTEXT,
    PROMPT_TOKENS,
    SPECS,
    WINDOW,
    greedy,
    load,
    prepare_corpus,
)
from embedded_head import ROWS, loss_over_depths, new_head
from embedded_report import report
from torch import nn
from torch.nn import functional
from transformers import LlamaForCausalLM

# Of the training time: for the target to write text to distil from, for the head, and, on top, for
# the block.
WRITING_SHARE, HEAD_SHARE, BLOCK_SHARE = 0.04, 0.12, 0.16
WRITERS = 256  # rows written at once


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


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding, the output and the norms."""
    inner, outer = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        of_tokens = "embed" in name or "lm_head" in name
        (inner if parameter.ndim == 2 and not of_tokens else outer).append(parameter)
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
            if teacher is None:
                guesses = logits[:, :-1].flatten(0, 1).float()
                return functional.cross_entropy(guesses, ids[:, 1:].flatten())
            with torch.no_grad():
                wanted = teacher(input_ids=ids, use_cache=False).logits
        log_q, log_p = logits.float().log_softmax(-1), wanted.float().log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean()

    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(loss)
    return compiled


def feed_of(
    work: Path, rng: np.random.Generator, vocab: int, *, distilled: bool
) -> Callable[[float], torch.Tensor]:
    """f(progress) -> ids of one step; what is distilled reads `written` too."""
    corpus = windows(np.load(work / f"train-{vocab}.npy"), rng)
    written = pages(np.load(work / "written.npy"), rng) if distilled else None
    turn = itertools.count()

    def feed(progress: float) -> torch.Tensor:
        if written is not None and next(turn) % 2:
            return torch.from_numpy(next(written))
        size = WINDOW if progress < 5 / 6 else CONTEXT
        return torch.from_numpy(next(corpus).reshape(-1, size))

    return feed


class Run:
    """A model in training: its optimizers, what it has spent and seen, its checkpoint."""

    def __init__(self, name: str, model: nn.Module, work: Path) -> None:
        self.name, self.model, self.path = name, model, work / f"{name}.pt"
        self.steppers = optimizers(self.model)
        self.peaks = [stepper.param_groups[0]["lr"] for stepper in self.steppers]
        self.seconds, self.tokens = 0.0, 0
        if self.path.exists():
            state = torch.load(self.path)
            self.seconds, self.tokens = state["seconds"], state["tokens"]
            self.model.load_state_dict(state["model"])
            for stepper, held in zip(self.steppers, state["optimizers"], strict=True):
                stepper.load_state_dict(held)

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [stepper.state_dict() for stepper in self.steppers],
            "seconds": self.seconds,
            "tokens": self.tokens,
        }
        torch.save(state, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").rename(self.path)

    def step(self, loss: torch.Tensor, done: float) -> float:
        """One update, with the learning rate of a run that is `done` in [0, 1)."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        scale = min(1.0, done / 0.02 + 0.02, (1 - done) / 0.9)
        for stepper, peak in zip(self.steppers, self.peaks, strict=True):
            for group in stepper.param_groups:
                group["lr"] = peak * scale
            stepper.step()
            stepper.zero_grad()
        return loss.item()


def train(
    run: Run,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    feed: Callable[[float], torch.Tensor],
    seconds: float,
) -> None:
    """Trains for `seconds` of the processor and writes {name}.pt; resumes from it."""
    if run.seconds >= seconds:
        return
    loss_of(feed(run.seconds / seconds)).backward()  # compiles outside the clock
    run.model.zero_grad()
    saved, mean = run.seconds, math.nan
    while run.seconds < seconds:
        began = time.process_time()
        done = run.seconds / seconds
        ids = feed(done)
        loss = run.step(loss_of(ids), done)
        mean = loss if math.isnan(mean) else 0.98 * mean + 0.02 * loss
        run.tokens += ids.numel()
        run.seconds += min(time.process_time() - began, 10.0)  # recompiling is not training
        if run.seconds - saved > 60 or run.seconds >= seconds:
            saved = run.seconds
            run.save()
            rate = run.tokens / run.seconds
            print(f"{run.name} {done:5.1%} loss {mean:.3f} {rate:,.0f} tokens/s", flush=True)


def train_model(name: str, work: Path, seconds: float) -> None:
    """Trains a language model from random weights."""
    spec = SPECS[name]
    run = Run(name, model := spec.build(), work)
    # On a CPU the backward pass of the fused attention kernel is the slower one.
    model.set_attn_implementation("eager")
    loss_of = objective(model, load(work, "target") if spec.distilled else None)
    rng = np.random.default_rng(run.tokens)
    train(run, loss_of, feed_of(work, rng, spec.vocab, distilled=spec.distilled), seconds)


def train_head(work: Path, seconds: float) -> None:
    """Trains the head, from the target's last layer, on what `distilled` reads."""
    target = load(work, "target")
    run = Run("head", head := new_head(work, target), work)
    rng = np.random.default_rng(run.tokens)
    texts = feed_of(work, rng, SPECS["target"].vocab, distilled=True)
    rows = itertools.chain.from_iterable(texts(0).split(ROWS) for _ in itertools.count())
    loss_of = partial(torch.compile(loss_over_depths), head, target)
    train(run, loss_of, lambda done: next(rows), seconds)


def train_block(work: Path, seconds: float) -> None:
    """Trains the block drafter, from the target's last layers, on what `distilled` reads."""
    target = load(work, "target")
    run = Run("block", block := new_block(work, target), work)
    rng = np.random.default_rng(run.tokens)
    torch.manual_seed(run.tokens)  # where blocks begin
    texts = feed_of(work, rng, SPECS["target"].vocab, distilled=True)
    rows = itertools.chain.from_iterable(texts(0).split(BLOCK_ROWS) for _ in itertools.count())
    train(run, partial(loss_of_blocks, block, target), lambda done: next(rows), seconds)


def write(work: Path, seconds: float) -> None:
    """The target continues random places of the training text: written.npy [n, WINDOW]."""
    target = load(work, "target").bfloat16()
    stream, rng = np.load(work / "train-2048.npy"), np.random.default_rng(1)
    batches: list[np.ndarray] = []
    began = time.perf_counter()
    while not batches or time.perf_counter() - began < seconds:
        starts = rng.integers(len(stream) - PROMPT_TOKENS, size=WRITERS)
        prompts = np.stack([stream[s : s + PROMPT_TOKENS] for s in starts])
        batches.append(greedy(target, prompts, WINDOW - PROMPT_TOKENS).astype(np.uint16))
        print(f"written: {WRITERS * len(batches)} rows", flush=True)
    np.save(work / "written.npy", np.concatenate(batches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("draftbench/embedded"))
    parser.add_argument("--work", type=Path, default=Path("build/embedded"))
    parser.add_argument("--minutes", type=float, default=100.0, help="training time of all models")
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
        steps[name] = partial(train_model, name, work, spec.share * seconds)
    steps["head"] = lambda: train_head(work, HEAD_SHARE * seconds)
    steps["block"] = lambda: train_block(work, BLOCK_SHARE * seconds)
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

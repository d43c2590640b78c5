"""A prepared sweep → what it would do, in words: the grid, the passes and the tokens, before any
weight is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.records import Candidate
from draftbench.report.text import columns
from draftbench.store.manifest import Manifest


def grid_text(
    manifest: Manifest, candidates: Sequence[Candidate], prompts: Sequence[tuple[int, int]]
) -> str:
    """The grid of a sweep.

    Args:
        prompts: (prompt tokens, most output tokens) of every request.
    """
    question = manifest.question
    read = sum(tokens for tokens, _ in prompts)
    most = sum(limit for _, limit in prompts) * question.samples
    rows = [
        ("target", f"{question.target}, quantization {question.target_quant}, {question.dtype}"),
        ("candidates", ", ".join(map(str, candidates))),
        ("k", ", ".join(map(str, question.ks))),
        ("drafting", question.mode.value),
        (
            "requests",
            f"{len(prompts)} with {read} prompt tokens, {question.samples} response(s) each",
        ),
        ("target writes", f"at most {most} tokens"),
        (
            "draft passes",
            f"one over {read} + at most {most} tokens per model candidate, for every k",
        ),
        ("device", f"{question.device}, {manifest.environment.threads} CPU threads"),
    ]
    return columns(("", ""), rows).lstrip("\n")

"""Figures of a run → drawings of what users notice: time per output token, and memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from draftbench.planner.recommendation import Recommendation
from draftbench.report.charts.look import legend, name_of
from draftbench.report.figures import Figures, TokenTimes
from draftbench.report.plots import PALETTE, Drawing, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def times(found: TokenTimes | None) -> list[Drawing]:
    """How a request's mean time per output token is distributed, with and without speculation."""
    if found is None:
        return []
    return [
        Drawing(
            name="time-per-output-token",
            title=f"Time per output token: {found.candidate}, k = {found.k}",
            sample=f"{len(found.plain)} requests, each decoded both ways in turn",
            note="Each step is one request's mean after its first token: left is faster.",
            draw=partial(_times, found),
        )
    ]


def _times(found: TokenTimes, ax: Axes) -> None:
    both = (
        ("without speculation", found.plain, PALETTE[6], "--"),
        ("with speculation", found.speculative, PALETTE[0], "-"),
    )
    for text, seconds, colour, line in both:
        milliseconds = np.sort(seconds) * 1e3
        below = np.arange(len(milliseconds) + 1) / len(milliseconds)
        ax.step(
            [milliseconds[0], *milliseconds], below, line, where="post", color=colour, label=text
        )
    ax.set(xlabel="mean time per output token (ms)", ylabel="share of requests", ylim=(0, 1.02))
    legend(ax)


def memory(figures: Figures, answer: Recommendation) -> list[Drawing]:
    """Weights of the target and what each draft adds."""
    target = figures.target_bytes
    rows = [(name_of(c), c.memory_bytes) for c in answer.by_candidate if c.memory_bytes is not None]
    if target is None or not rows:
        return []
    return [
        Drawing(
            name="memory",
            title="Memory with each draft",
            sample=f"cache at the longest of {answer.requests} requests, one at a time",
            note="A draft adds its weights and its key-value cache; activations are not counted.",
            draw=partial(_memory, rows, target),
            height=1.3 + 0.32 * len(rows),
        )
    ]


def _memory(rows: list[tuple[str, int]], target: int, ax: Axes) -> None:
    largest = target + max(size for _, size in rows)
    scale, unit = (1e9, "GB") if largest >= 1e9 else (1e6, "MB")
    places = range(len(rows))
    ax.barh(places, target / scale, 0.6, color=PALETTE[6], alpha=0.5, label="target weights")
    ax.barh(
        places,
        [size / scale for _, size in rows],
        0.6,
        left=target / scale,
        color=PALETTE[0],
        label="draft weights and cache",
    )
    for place, (_, size) in zip(places, rows, strict=True):
        ax.annotate(
            f"+{size / target:.0%}",
            ((target + size) / scale, place),
            (4, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set_yticks(places, [label(name) for name, _ in rows])
    ax.set(xlabel=f"memory ({unit})", xlim=(0, 1.15 * largest / scale))
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    legend(ax)

"""Accelerator cards: memory, bandwidth and peak operations from their vendors' data sheets.

Gigabytes are counted as 10⁹ bytes, which for most cards is a little less than there is. Operations
are dense 16-bit tensor operations with 32-bit accumulation; the sheets of recent cards print twice
as much, with sparsity. A number that could not be verified is None. Last looked up on 2026-11-20.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from draftbench.errors import UsageError


@dataclass(frozen=True)
class Card:
    """One card: `memory` in bytes, `bandwidth` in bytes per second, `operations` per second."""

    title: str
    memory: float
    bandwidth: float | None
    operations: float | None
    source: str


_AMPERE = "NVIDIA A100 data sheet, 2021"
_HOPPER = "NVIDIA H100 data sheet, 2023, half of the figure with sparsity"
CARDS = {
    "a100-40": Card("NVIDIA A100 40 GB SXM", 40e9, 1555e9, 312e12, _AMPERE),
    "a100-80": Card("NVIDIA A100 80 GB SXM", 80e9, 2039e9, 312e12, _AMPERE),
    "h100": Card("NVIDIA H100 80 GB SXM", 80e9, 3.35e12, 989.5e12, _HOPPER),
    "h200": Card(
        "NVIDIA H200 141 GB SXM",
        141e9,
        4.8e12,
        989.5e12,
        "NVIDIA H200 data sheet, 2023, half of the figure with sparsity",
    ),
    "l4": Card(
        "NVIDIA L4 24 GB",
        24e9,
        300e9,
        121e12,
        "NVIDIA L4 data sheet, 2023, half of the figure with sparsity",
    ),
    "l40s": Card("NVIDIA L40S 48 GB", 48e9, 864e9, 362.05e12, "NVIDIA L40S data sheet, 2023"),
    "rtx4090": Card(
        "NVIDIA GeForce RTX 4090 24 GB",
        24e9,
        1008e9,
        165.2e12,
        "NVIDIA Ada GPU architecture whitepaper, 2022: with 32-bit accumulation, without sparsity",
    ),
    "b200": Card(
        "NVIDIA B200 180 GB",
        180e9,
        7.67e12,
        2250e12,
        "NVIDIA DGX B200 data sheet, 2024, half of the figure with sparsity; bandwidth of the bus "
        "that its driver reports (pytorch/ao pull request 4002, 2026), which the sheet rounds to 8",
    ),
}


def card_named(name: str) -> Card:
    """The card of that name.

    Raises:
        UsageError: it is not in the table.
    """
    if name in CARDS:
        return CARDS[name]
    near = difflib.get_close_matches(name, CARDS, 1)
    meant = f"did you mean `{near[0]}`? " if near else ""
    raise UsageError(
        f"no data of the card `{name}`", hint=f"{meant}the cards are {', '.join(CARDS)}"
    )

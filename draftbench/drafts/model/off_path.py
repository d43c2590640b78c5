"""What a draft drafts on after a token at which its draft leaves a response: it reads that token of
its own, and then those that it drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from draftbench.decoder.runner import Runner, on_device
from draftbench.decoder.sampling import best, confidence
from draftbench.measure.replay import confidences_of
from draftbench.measure.teacher import refuse_nan
from draftbench.records import Confidences


class Departure(NamedTuple):
    """Where a row's draft leaves its text: after `length` tokens of it, it reads `token`, and
    drafts `most` more.
    """

    length: int
    token: int
    most: int


def drafted_off_path(
    runner: Runner, cache: Any, departures: Sequence[Sequence[Departure]]
) -> list[Confidences]:
    """The confidences in what is drafted after each of some departures, for each row of a cache
    that holds the texts, with room for what is drafted.

    All rows draft side by side, each from its last departure to its first, since that is where the
    text behind it is no longer needed. The host need not wait for the device before the end.
    """
    rows = range(len(departures))
    left = [[each for each in of_row if each.most > 0] for of_row in departures]
    steps = [0] * len(rows)  # that are left of each row's run
    read = torch.zeros(len(rows), dtype=torch.long, device=runner.device)
    sure, whose = list[torch.Tensor](), list[int]()
    while True:
        begun = {row: left[row].pop() for row in rows if not steps[row] and left[row]}
        for row, (length, _, most) in begun.items():
            cache.rewind(row, length)
            steps[row] = most
        active = [row for row in rows if steps[row]]
        if not active:
            break
        if begun:
            tokens = on_device([each.token for each in begun.values()], runner.device)
            read.index_copy_(0, on_device(list(begun), runner.device), tokens)
        places = on_device(active, runner.device)
        counts = [int(left_of_row > 0) for left_of_row in steps]
        logits = runner.forward(read[places], cache, every=False, counts=counts)
        read.index_copy_(0, places, best(logits))
        sure.append(torch.stack([confidence(logits, "all"), confidence(logits, "ten")]))
        whose += active
        steps = [max(left_of_row - 1, 0) for left_of_row in steps]
    of_all, of_ten = torch.cat(sure, dim=1) if sure else torch.empty(2, 0)
    refuse_nan(of_all)
    by_row = [(list[float](), list[float]()) for _ in rows]
    for row, *both in zip(whose, of_all.tolist(), of_ten.tolist(), strict=True):
        for values, value in zip(by_row[row], both, strict=True):
            values.append(value)
    found = []
    for drafted, of_row in zip(by_row, departures, strict=True):
        last_first = [
            [[*islice(values, each.most)] for each in of_row[::-1]] for values in map(iter, drafted)
        ]
        found.append(confidences_of(*(runs[::-1] for runs in last_first)))
    return found

"""Decodes prompts into responses by rounds of drafting and verification; k = 0 is plain decoding.

In each round every active row drafts up to k tokens, the target runs once over each row's last
token and proposal, each row keeps the accepted tokens and one of the target's, and both caches are
rewound row by row. When a row's response ends, it takes the next task at once. Nothing is drafted
past a length limit. Proposals after an accepted end of the response are cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from draftbench.decoder.drafters import Drafter, Proposal, ProposalRequest
from draftbench.decoder.runner import (
    Clock,
    DecodeTask,
    HiddenStates,
    Response,
    Runner,
    on_device,
    singly,
)
from draftbench.decoder.sampling import (
    accepted_of,
    best,
    distribution,
    draw,
    equal_places,
    filters_of,
    target_tokens,
)
from draftbench.records import StopRule


def decode(
    task: DecodeTask,
    target: Runner,
    drafter: Drafter | None,
    k: int,
    clock: Clock,
    stop: StopRule | None = None,
) -> Response:
    """Produce the response to one task; see `decode_all`."""
    return decode_all([task], target, drafter, k, clock, stop=stop)[0]


def decode_all(
    tasks: Sequence[DecodeTask],
    target: Runner,
    drafter: Drafter | None,
    k: int,
    clock: Clock,
    rows: int = 1,
    stop: StopRule | None = None,
) -> list[Response]:
    """Produce the response to each task with draft length `k`, or less where a rule stops a round's
    drafting, up to `rows` of them at a time.

    With k = 0 the drafter is not used: every round is one target step. At temperature 0, and with
    greedy drafting at any temperature, the output is that of the target alone up to near ties of
    logits.
    """
    batch = Batch(tasks, target, drafter, k, clock, rows, stop)
    while batch.advance():
        pass
    return batch.responses


class _Row:
    """One unfinished response."""

    def __init__(self, slot: int, task: DecodeTask, response: Response, device: str) -> None:
        self.slot, self.task, self.response = slot, task, response
        self.context, self.filters = list(task.prompt), filters_of(task.sampling)
        self.streams: dict[str, Tensor] = {}
        if task.sampling.temperature > 0:
            for purpose in ("target", "accept", "residual"):
                uniforms = torch.from_numpy(task.uniforms.stream(purpose))
                self.streams[purpose] = uniforms.to(device)

    @property
    def left(self) -> int:
        """Tokens that it may still have."""
        return self.task.limit - len(self.response.tokens)

    @property
    def done(self) -> bool:
        return self.response.finish != "length" or self.left <= 0

    def uniforms(self, purpose: str, n: int) -> Tensor:
        """The uniform numbers for the next n positions."""
        return self.streams[purpose].narrow(0, len(self.response.tokens), n)

    def emit(self, tokens: list[int]) -> int:
        """Append tokens until the response ends, and return how many were appended."""
        for count, token in enumerate(tokens, start=1):
            self.response.tokens.append(token)
            self.context.append(token)
            if self.task.ends(self.response.tokens):
                self.response.finish = "stop"
                return count
        return len(tokens)


class Batch:
    """Decodes tasks in `rows` rows of one target and one drafter."""

    def __init__(
        self,
        tasks: Sequence[DecodeTask],
        target: Runner,
        drafter: Drafter | None,
        k: int,
        clock: Clock,
        rows: int,
        stop: StopRule | None = None,
    ) -> None:
        self.target, self.k, self.clock, self.stop = target, k, clock, stop
        self.drafter = drafter if k > 0 else None
        self.responses = [Response() for _ in tasks]
        self.waiting = deque(zip(tasks, self.responses, strict=True))
        self.rows: list[_Row | None] = [None] * min(rows, len(tasks))
        capacity = max((task.capacity for task in tasks), default=0)
        # Without a rule, widths between 1 and k + 1 occur only in the last rounds of a response,
        # which are too rare in a batch to prepare for.
        every = len(self.rows) == 1 or stop is not None
        widths = range(1, self.k + 2) if every else (1, self.k + 1)
        reads = self.drafter.reads if self.drafter is not None else ()
        self.hidden = HiddenStates(reads) if reads else None
        self.cache = target.new_cache(capacity, len(self.rows), widths, reads)
        if self.drafter is not None:
            self.drafter.open(len(self.rows), capacity, widths)
        self.mark: Any = None  # at the end of the last round

    @property
    def done_tokens(self) -> int:
        """Output tokens so far, of all tasks."""
        return sum(len(response.tokens) for response in self.responses)

    @property
    def finished(self) -> int:
        """Responses that are neither waiting nor in a row."""
        active = sum(row is not None for row in self.rows)
        return len(self.responses) - len(self.waiting) - active

    def pause(self) -> None:
        """Exclude the time until the next round from the measurements: something else runs."""
        self.mark = None

    def advance(self) -> bool:
        """Fill the empty rows and run one round; False when every task is done."""
        for slot, row in enumerate(self.rows):
            while row is None and self.waiting:
                row = _Row(slot, *self.waiting.popleft(), self.target.device)
                self._prefill(row)
                row = None if row.done else row
                self.mark = None
            self.rows[slot] = row
        active = [row for row in self.rows if row is not None]
        if active:
            self._round(active)
            self.rows = [None if row is None or row.done else row for row in self.rows]
        return bool(active)

    def _prefill(self, row: _Row) -> None:
        """Read the prompt with both models and emit the first token."""
        start = self.clock.mark()
        self.cache.rewind(row.slot, 0)
        prompt = on_device(row.task.prompt, self.target.device)
        counts = self._counts([row], [len(prompt)])
        logits = self.target.forward(
            prompt, self.cache, every=False, counts=counts, hidden=self.hidden
        )
        first = int(_target_tokens([row], logits, [None]).item())
        end = self.clock.mark()
        row.response.prefill_seconds = self.clock.seconds(start, end)
        if self.drafter is not None:
            states = self.hidden.joined() if self.hidden else None
            self.drafter.begin(row.slot, row.task, states)
            row.response.draft_prefill_seconds = self.clock.seconds(end, self.clock.mark())
        row.emit([first])

    def _round(self, active: list[_Row]) -> None:
        """Draft, verify every row's proposal in one target pass, and keep what was accepted."""
        start = self.mark or self.clock.mark()
        proposals: Sequence[Proposal | None] = [None] * len(active)
        if self.drafter is not None:
            ks = [min(self.k, row.left - 1) for row in active]  # none beyond the length limit
            pairs = zip(active, ks, strict=True)
            asks = [ProposalRequest(r.slot, r.context, k, self.k) for r, k in pairs]
            proposals = self.drafter.propose(asks, self.stop)
        between = self.clock.mark()
        lasts = on_device([row.context[-1] for row in active], self.target.device)
        drafted = [proposal.tokens if proposal else () for proposal in proposals]
        sizes = [1 + len(tokens) for tokens in drafted]
        pieces = zip(singly(lasts), drafted, strict=True)
        read = torch.cat([token for last, tokens in pieces for token in (last, *tokens)])
        counts = self._counts(active, sizes)
        logits = self.target.forward(
            read, self.cache, every=True, counts=counts, hidden=self.hidden
        )
        answers = _target_tokens(active, logits, proposals)
        # The host waits for the device here, once a round for any number of rows.
        tokens, answered = torch.stack([read, answers]).tolist()
        states = self.hidden.joined() if self.hidden else None
        for row, proposal, end, size in zip(
            active, proposals, accumulate(sizes), sizes, strict=True
        ):
            of_row, response = slice(end - size, end), row.response
            proposed, answer = tokens[of_row][1:], answered[of_row]
            accepted = accepted_of(answer, proposed)
            emitted = row.emit([*proposed[:accepted], answer[accepted]])
            response.drafted.append(proposal.drafted if proposal else 0)
            response.proposed.append(len(proposed))
            response.accepted.append(min(emitted, accepted))
            # If the target's token was not emitted, the response ended inside the proposal, the
            # rest of which is cut, not rejected.
            response.cut.append(len(proposed) - emitted if emitted <= accepted else 0)
            self.cache.rewind(row.slot, len(row.context) - 1)
            if self.drafter is not None:
                kept = None if states is None else states[of_row]
                self.drafter.keep(row.slot, len(row.context) - 1, kept)
        self.mark = self.clock.mark()
        halves = self.clock.seconds(start, between), self.clock.seconds(between, self.mark)
        for row in active:
            row.response.draft_seconds.append(halves[0])
            row.response.verify_seconds.append(halves[1])
            row.response.active.append(len(active))

    def _counts(self, active: Sequence[_Row], sizes: Sequence[int]) -> list[int]:
        """Tokens for each row of the cache."""
        counts = [0] * len(self.rows)
        for row, size in zip(active, sizes, strict=True):
            counts[row.slot] = size
        return counts


def _target_tokens(
    rows: Sequence[_Row], logits: Tensor, proposals: Sequence[Proposal | None]
) -> Tensor:
    """The target's tokens [n] for the logits [n, vocab] of all rows, one more per row than it
    proposed.
    """
    sizes = [1 + len(proposal.tokens) if proposal else 1 for proposal in proposals]
    groups = equal_places(
        (row.filters, bool(proposal and proposal.q))
        for row, proposal in zip(rows, proposals, strict=True)
    )
    if len(groups) == 1:
        return _tokens_of_group(rows, logits, proposals, sizes)
    parts, answers = logits.split(sizes), dict[int, Tensor]()
    for members in groups.values():
        group, wanted = [rows[at] for at in members], [sizes[at] for at in members]
        some = torch.cat([parts[at] for at in members])
        tokens = _tokens_of_group(group, some, [proposals[at] for at in members], wanted)
        answers.update(zip(members, tokens.split(wanted), strict=True))
    return torch.cat([answers[at] for at in range(len(rows))])


def _tokens_of_group(
    rows: Sequence[_Row], logits: Tensor, proposals: Sequence[Proposal | None], sizes: Sequence[int]
) -> Tensor:
    """`_target_tokens` of rows with the same filters that all sample their proposals, or none of
    them. For sampled proposals they are the accepted ones and the replacement of a rejected one.
    """
    filters, drafts = rows[0].filters, [proposal for proposal in proposals if proposal]
    if filters.temperature == 0:
        return best(logits)
    p = distribution(logits, filters)
    if not (drafts and drafts[0].q):
        return draw(p, _uniforms(rows, sizes, "target"))
    nothing, no_token = p.new_zeros(1, p.shape[1]), logits.new_zeros(1, dtype=torch.long)
    q = torch.cat([piece for draft in drafts for piece in (*draft.q, nothing)])
    proposed = torch.cat([token for draft in drafts for token in (*draft.tokens, no_token)])
    accept, residual, bonus = (
        _uniforms(rows, sizes, purpose) for purpose in ("accept", "residual", "target")
    )
    return target_tokens(p, q, proposed, (accept, residual, bonus))


def _uniforms(rows: Sequence[_Row], sizes: Sequence[int], purpose: str) -> Tensor:
    """The uniform numbers for each row's next positions, row after row."""
    pairs = zip(rows, sizes, strict=True)
    return torch.cat([row.uniforms(purpose, size) for row, size in pairs])

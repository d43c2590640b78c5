"""What replay says of acceptance, on one screen: the figures that decide, where each draft fails,
what looks broken. `card` has every definition of the same report.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.acceptance.card import AcceptanceReport, Card, Reading
from draftbench.acceptance.definitions import MEAN_ACCEPTED_LENGTH
from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.records import SELF
from draftbench.report.terminal.text import Section, figure

_USUAL_K = 4
_GROUPS = ("segment", "temperature", "third")
_MOST_GROUPS = 8
_LEGEND = (
    "α: share of drafted positions accepted, at any k. τ, the mean accepted length: tokens per "
    "round that drafted, the target's own included, at that k. h: of the tokens tried at the first "
    "and at the last position of a round, those accepted: falling, drafts fail late in a round. ± "
    "is half of a 95 % interval over requests. All from replay: nothing here was decoded."
)
_MORE = (
    "`--all` prints every definition at every k, hazards and survival by position, stopping "
    "rules and trees; `--candidate NAME` one draft."
)


def overview(report: AcceptanceReport) -> list[Section]:
    """A line per candidate, α by group, and sentences."""
    cards = report.cards
    ks = _shown_ks(cards)
    head = ["candidate", "α", *(f"τ k={k}" for k in ks), "h"]
    rows = [
        [
            card.candidate,
            figure(card.alpha.pooled if card.alpha else None),
            *(_length(card, k) for k in ks),
            _ends(card.hazards),
        ]
        for card in cards
    ]
    modes = " and ".join(dict.fromkeys(f"{c.mode} drafting" for c in cards if c.mode))
    counts = max((card.requests for card in cards), default=0)
    title = f"Acceptance of {len(cards)} candidates on {counts} requests"
    return [
        Section(f"{title}, {modes}" if modes else title, head, rows, [_LEGEND]),
        *_groups(cards),
        Section("Where they fail", notes=[*_readings(cards), *_ties(report), _MORE]),
    ]


def _ties(report: AcceptanceReport) -> list[str]:
    """How far equality with a decoder reaches."""
    if not report.near_tie_share:
        return []
    return [
        f"{report.near_tie_share:.1%} of the target's tokens are near ties: there a decoder may "
        "write the other one, and its counts part from these"
    ]


def _shown_ks(cards: Sequence[Card]) -> list[int]:
    """The least, the usual and the largest."""
    known = sorted({r.k for card in cards for r in card.at_each_k if r.k is not None})
    if not known:
        return []
    usual = min(known, key=lambda k: (abs(k - _USUAL_K), k))
    return sorted({known[0], usual, known[-1]})


def _length(card: Card, k: int) -> str:
    symbol = MEAN_ACCEPTED_LENGTH.symbol
    return next(
        (_pooled(r) for r in card.at_each_k if (r.k, r.symbol) == (k, symbol)),
        "–",
    )


def _pooled(reading: Reading) -> str:
    return figure(reading.pooled)


def _ends(hazards: Sequence[Reading]) -> str:
    known = [r.pooled for r in (*hazards[:1], *hazards[-1:])]
    return " → ".join("–" if h is None else f"{h.value:.2f}" for h in known) or "–"


def _groups(cards: Sequence[Card]) -> list[Section]:
    """α by segment, temperature and third of the response, a column per model draft."""
    shown = [card for card in cards if card.breakdown and card.candidate != SELF][:4]
    found: dict[tuple[str, str], list[str]] = {}
    for at, card in enumerate(shown):
        assert card.breakdown is not None
        for group in card.breakdown.groups:
            if group.by in _GROUPS:
                row = found.setdefault((group.by, group.name), ["–"] * len(shown))
                row[at] = figure(group.alpha)
    rows, left = [], []
    for by in _GROUPS:
        own = [[by, name, *row] for (kind, name), row in found.items() if kind == by]
        if len(own) > 1:
            rows += own[:_MOST_GROUPS]
            left += [f"{len(own) - _MOST_GROUPS} more by {by}"] if len(own) > _MOST_GROUPS else []
    if not rows:
        return []
    head = ["α by", "", *(card.candidate for card in shown)]
    return [Section("α by group of requests, and along the response", head, rows, left)]


def _readings(cards: Sequence[Card]) -> list[str]:
    """Suspected faults, and what the fall along a response says of whom."""
    lines = [
        f"{card.candidate}: suspected fault: {fault.message}; {fault.advice}"
        for card in cards
        for fault in card.faults
    ]
    said: dict[str, list[str]] = {}
    for card in cards:
        if card.breakdown and card.breakdown.reading and card.candidate != SELF:
            said.setdefault(card.breakdown.reading, []).append(card.candidate)
    lines += [f"{', '.join(names)}: {reading}" for reading, names in said.items()]
    if min((card.requests for card in cards), default=0) < FEW_REQUESTS:
        lines.append(f"under {FEW_REQUESTS} requests the intervals are too narrow")
    return lines or ["No draft differs clearly along the response."]

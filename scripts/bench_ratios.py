"""Speeds of several contestants on the same requests → medians of ratios with their intervals."""

import math
import statistics
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

CONSOLE = Console(width=138)


@dataclass
class Part:
    """What one interleaved comparison found: by contestant, request by request."""

    code: list[bool] = field(default_factory=list)
    speeds: dict[str, list[float]] = field(default_factory=dict)
    # Of the tokens after the first; None where there are none or nobody says when that came.
    decoding: dict[str, list[float | None]] = field(default_factory=dict)
    texts: dict[str, list[list[int]]] = field(default_factory=dict)
    responses: dict[str, list] = field(default_factory=dict)

    @classmethod
    def of(cls, names) -> "Part":
        """Nothing yet of these contestants."""
        return cls([], *({name: [] for name in names} for _ in range(4)))

    def add(
        self, name: str, tokens: list[int], seconds: float, first: float | None, *response
    ) -> None:
        """One run of a contestant; `first` of its seconds went by until its first token."""
        self.speeds[name].append(len(tokens) / seconds)
        known = first is not None and len(tokens) > 1
        self.decoding[name].append((len(tokens) - 1) / (seconds - first) if known else None)
        self.texts[name].append(tokens)
        self.responses[name] += response

    def ratio(self, name: str, other: str, **only: bool) -> str | None:
        """Median and interval of one contestant's speed over another's; None where one is
        missing.
        """
        figures = median_ratio(self.ratios(name, other, **only))
        return figures and "{:.2f} ({:.2f}–{:.2f})".format(*figures)

    def ratios(
        self, name: str, other: str, *, code: bool = False, decoding: bool = False
    ) -> list[float]:
        speeds = self.decoding if decoding else self.speeds
        if name not in speeds or other not in speeds:
            return []
        both = zip(speeds[name], speeds[other], self.code, strict=True)
        return [a / b for a, b, is_code in both if a and b and (is_code or not code)]


def median_ratio(ratios: list[float]) -> tuple[float, float, float] | None:
    """The median and the narrowest pair of order statistics around it with 90% coverage or more
    (all there is, where so few requests cannot have that).
    """
    if not ratios:
        return None
    own, n, left = sorted(ratios), len(ratios), 0
    outside = 0.5**n
    while 1 - 2 * (outside + math.comb(n, left + 1) * 0.5**n) >= 0.9:
        left += 1
        outside += math.comb(n, left) * 0.5**n
    return statistics.median(own), own[left], own[n - 1 - left]


def show(title, part: Part, against: list[tuple[str, str]], costs):
    """One comparison as a table; `against` are (column head, peer)."""
    table = Table(title=f"{title}: {len(part.code)} requests")
    for head in ("", "tok/s", *(head for head, _ in against), "same text", "round/passes"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    reference = part.texts[against[0][1]]
    for name, speeds in part.speeds.items():
        same = sum(a == b for a, b in zip(part.texts[name], reference, strict=True))
        rounds = costs.overhead(name, part.responses[name]) if costs else None
        table.add_row(
            name,
            f"{statistics.median(speeds):.1f}",
            *(
                part.ratio(name, peer, code="code" in head, decoding="1st" in head) or "–"
                for head, peer in against
            ),
            f"{same}/{len(speeds)}",
            "" if rounds is None else f"{rounds:.3f}",
        )
    CONSOLE.print(table)

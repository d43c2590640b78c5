"""Does a serving engine write with speculation what it writes without?

Requests are paired three times over: an answer with speculation beside the text without, a second
answer without it beside the same text, and the baseline's answer with speculation. Where surely
more differ than in both of the others, not at a near tie, speculation changes what is written.
Differences of unknown cause may all be near ties, so that they leave the verdict open at most, as
do those of a server that was not asked twice without speculation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draftbench.gate.baseline import Baseline
from draftbench.gate.noninferiority import TAIL, Verdict, chance_of
from draftbench.gate.pair_requests import Pair
from draftbench.gate.result import TextCheck
from draftbench.planner.texts import Match

_SURE: tuple[Match, ...] = ("other",)
_DIFFERENT: tuple[Match, ...] = ("unknown", "other")
# Of one request with speculation, without it the second time, and with it in the baseline.
_Seen = tuple[Match, Match | None, Match | None]
# A server of which any of these is another, or unknown, may write another text without speculation.
_SERVER = ("engine", "engine version", "target")


def judge_texts(old: Baseline, new: Baseline, pairs: Sequence[Pair]) -> TextCheck | None:
    """The share of answers with speculation that differ from those without: of the new run, or
    where it has none without, from the baseline's of the same server; None where neither has both.
    """
    seen: list[_Seen] = [
        (now.text, now.plain_text, was.text) for was, now in pairs if now.text is not None
    ]
    against_baseline = not seen
    if against_baseline and all(
        old.tested.get(fact) == new.tested.get(fact) is not None for fact in _SERVER
    ):
        seen = [
            (
                "same" if now.drafted in (was.output, was.drafted) else "unknown",
                was.plain_text,
                None,
            )
            for was, now in pairs
            if was.output and now.drafted
        ]
    if not seen:
        return None
    plain = [again for _, again, _ in seen if again is not None]
    before = [match for _, _, match in seen if match is not None]
    return TextCheck(
        requests=len(seen),
        differ=sum(match in _DIFFERENT for match, _, _ in seen),
        unknown=sum(match == "unknown" for match, _, _ in seen),
        near_ties=sum(match == "near tie" for match, _, _ in seen),
        plain_requests=len(plain),
        plain_differ=sum(match in _DIFFERENT for match in plain),
        baseline_differ=sum(match in _DIFFERENT for match in before) if before else None,
        against_baseline=against_baseline,
        verdict=_verdict(seen),
    )


def _verdict(seen: Sequence[_Seen]) -> Verdict:
    sure, possible = (_changed(seen, kinds) for kinds in (_SURE, _DIFFERENT))
    calibrated = any(again is not None for _, again, _ in seen)
    if calibrated and all(chance_of(*counts) <= TAIL for counts in sure):
        return Verdict.FAIL
    if all(worse > better for worse, better in possible):
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


def _changed(seen: Sequence[_Seen], kinds: Collection[Match]) -> list[tuple[int, int]]:
    """How many requests differ so with speculation and not in what they are held against, and how
    many the other way round: against a second answer without, and against the baseline.
    """
    counts = []
    for against in (1, 2):
        known = [(each[0] in kinds, each[against] in kinds) for each in seen if each[against]]
        if known:
            counts.append((known.count((True, False)), known.count((False, True))))
    return counts or [(sum(match in kinds for match, _, _ in seen), 0)]

"""Rounds that a rule stops, walked token by token along what a replay recorded."""

from itertools import accumulate
from operator import mul

from draftbench.drafts.stack.replay import StackReplay
from draftbench.records import Replay


def runs_of(values, lengths):
    ends = list(accumulate(lengths))
    return [values[end - size : end] for end, size in zip(ends, lengths, strict=True)]


def drafted_from(record, start, length):
    """The confidences in all that a round may draft that starts there, among all tokens and among
    ten, and how many of its tokens the response has.
    """
    if not isinstance(record, Replay):
        of_all, of_ten = (
            runs_of(values, record.confidences.lengths)[start - 1]
            for values in (record.confidences.of_all, record.confidences.of_ten)
        )
        return list(zip(of_all, of_ten, strict=True)), record.matched[start - 1]
    wrong = [at for at, hit in enumerate(record.accept, 1) if not hit and at <= record.draftable]
    place = next((at for at, where in enumerate(wrong) if where >= start), len(wrong))
    until = wrong[place] if place < len(wrong) else length - 1
    run = [
        [*values[start - 1 : until], *runs_of(off_path, record.off_path.lengths)[place]]
        for values, off_path in (
            (record.confidence, record.off_path.of_all),
            (record.confidence_of_ten, record.off_path.of_ten),
        )
    ]
    room = max(0, record.draftable + 1 - start)
    matched = until - start + (place == len(wrong))
    return list(zip(*run, strict=True))[:room], min(matched, room)


def simulated(record, length, limit, k, rule):
    """Tokens drafted, proposed, accepted and cut in each round of a response."""
    start, rounds = 1, []
    at_once = getattr(record, "at_once", False)
    record = record.of_length(k) if at_once else record
    while start < length:
        room, drafting = max(0, min(k, limit - start - 1)), record
        if isinstance(record, StackReplay):
            drafting = record.drafting_at(start)
        if isinstance(record, StackReplay) and drafting is record.lookup:
            drafted = proposed = min(drafting.proposed[start - 1], room)
            matched = drafting.matched[start - 1]
        else:
            run, matched = drafted_from(drafting, start, length)
            drafted = proposed = min(room, len(run))
            products = accumulate((of_all for of_all, _ in run), mul)
            for at, ((of_all, of_ten), product) in enumerate(zip(run[:room], products)):  # noqa: B905
                sure = {"after": of_all, "before": of_ten, "product": product}[rule.kind]
                if sure < rule.threshold:
                    drafted = drafted if at_once else at + 1
                    proposed = at + (rule.kind != "before")
                    break
        inside = min(proposed, length - start)
        accepted = min(matched, inside)
        rounds.append((drafted, proposed, accepted, proposed - inside if accepted == inside else 0))
        start += accepted + 1
    return rounds


def decoded(response):
    """The same of a response that was decoded."""
    columns = response.drafted, response.proposed, response.accepted, response.cut
    return list(zip(*columns, strict=True))

"""Every figure of a run of six requests, by hand."""

import pytest
from scenes import SMALL, lookup, manifest, replay, trajectory

from draftbench.acceptance.summary import acceptance_report
from draftbench.records import Candidate, DraftingMode
from draftbench.run_folder.run import run_of

TINY, NGRAM = Candidate(draft="tiny"), Candidate(draft="ngram")


def run(accepts, *more):
    """Six requests of five tokens, far from a limit: acceptance of three by candidate, twice."""
    replays = [
        replay(accept, request=str(i), candidate=candidate, draftable=20)
        for candidate, each in accepts.items()
        for i, accept in enumerate([*each, *each])
    ]
    responses = [trajectory(str(i), 5, limit=20) for i in range(6)]
    return run_of(manifest(), [*responses, *replays, *more])


def pooled(card, k):
    return {r.symbol: r.pooled.value for r in card.at_each_k if r.k == k and r.pooled}


def only(report):
    (card,) = report.candidates
    return card


def test_every_definition_of_one_run_by_hand():
    right, wrong = [1.0] * 4, [0.0, 1.0, 1.0, 1.0]
    card = only(acceptance_report(run({SMALL: [right, right, wrong]}), [SMALL], (2,), 0.02))
    assert (card.candidate, card.mode, card.requests) == ("small", DraftingMode.GREEDY, 6)
    assert card.alpha is not None
    assert card.alpha.figure == "acceptance rate (emitted tokens)"
    assert card.alpha.pooled is not None
    assert card.alpha.pooled.value == pytest.approx(11 / 12)
    # Right: rounds at 1 (2 accepted) and 4 (1 accepted, 1 cut). Wrong: at 1 (none) and 2 (two
    # accepted; its third token is the response's last). Twice 6 rounds of 2 drafted tokens.
    assert pooled(card, 2) == pytest.approx(
        {
            "accepted/drafted": 8 / 12,
            "tok/round": 12 / 6,
            "τ": 1 + 8 / 6,
            "τ-1": 8 / 6,
            # Tried at the first token: 6, accepted 5; at the second 3 of 3: two were cut.
            "1+Σ Πh": 1 + 5 / 6 + 5 / 6 * 3 / 3,
        }
    )
    hazards = [r.pooled.value for r in card.hazards if r.pooled]
    survivals = [r.pooled.value for r in card.survivals if r.pooled]
    assert hazards == pytest.approx([5 / 6, 1.0])
    assert survivals == pytest.approx([5 / 6, 3 / 6])
    assert [r.symbol for r in (*card.hazards, *card.survivals)] == ["h_1", "h_2", "s_1", "s_2"]


def test_the_width_decides_how_many_requests_are_needed():
    half = [[1.0, 1.0, 0.0, 0.0], [1.0] * 4, [0.0] * 4]
    needed = []
    for width in (0.1, 0.05):
        alpha = only(acceptance_report(run({SMALL: half}), [SMALL], (1,), width)).alpha
        assert alpha is not None
        needed.append(alpha.requests_needed)
    # Requests' own α 0.5, 1, 0 twice: s² = 1/5, (1.96 / (0.1 · 0.5))² / 5 = 307.3, and four times.
    assert needed == [308, 1230]


def test_the_first_candidate_is_compared_with_each_other_by_request():
    seen = run({SMALL: [[1.0] * 4] * 3, TINY: [[1.0, 0.0, 1.0, 1.0]] * 3})
    report = acceptance_report(seen, [SMALL, TINY], (1,), 0.02)
    rows = [(d.candidate, d.against, d.figure, d.k, d.requests) for d in report.differences]
    assert rows == [
        ("small", "tiny", "acceptance rate (emitted tokens)", None, 6),
        ("small", "tiny", "tokens per round", 1, 6),
    ]
    # small: rounds at 1 and 3. tiny: its wrong token is never tried at k = 1.
    values = [(d.value.value, d.value.low, d.value.high) for d in report.differences if d.value]
    assert values == [pytest.approx((0.25,) * 3), pytest.approx((0.0,) * 3)]


def test_alpha_of_another_basis_is_not_compared():
    sampled = {"mode": DraftingMode.SAMPLED}
    seen = run_of(
        manifest(mode=DraftingMode.SAMPLED),
        [
            *(trajectory(r, 3) for r in "abc"),
            *(replay([0.5, 0.5], request=r, overlap=(0.5, 0.5), **sampled) for r in "abc"),
            *(replay([0.5, 0.5], request=r, candidate=TINY, **sampled) for r in "abc"),
        ],
    )
    report = acceptance_report(seen, [SMALL, TINY], (1,), 0.02)
    assert [card.alpha.symbol for card in report.candidates if card.alpha] == ["α", "α"]
    assert [d.figure for d in report.differences] == ["tokens per round"]


def test_prompt_lookup_is_compared_by_tokens_per_round():
    lookups = [lookup((0, 2, 2, 0), (0, 2, 1, 0), window=2, request=str(i)) for i in range(6)]
    seen = run({SMALL: [[1.0] * 4] * 3}, *lookups)
    report = acceptance_report(seen, [SMALL, NGRAM], (1, 2, 3), 0.02)
    assert [(d.figure, d.k) for d in report.differences] == [
        ("tokens per round", 1),
        ("tokens per round", 2),
    ]
    card = report.candidates[1]
    assert (card.mode, card.alpha, card.breakdown) == (None, None, None)
    # Three tokens were never looked for. At k = 2: rounds at 1, 2 (two accepted); 4 is covered.
    assert {r.k for r in card.at_each_k} == {1, 2}
    assert pooled(card, 2)["tok/round"] == pytest.approx(4 / 2)

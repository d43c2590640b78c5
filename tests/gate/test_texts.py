"""Texts with speculation against those without: counts worked out by hand."""

import pytest

from draftbench.gate.judge import judge
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.words import TEXTS_NOT_JUDGED, other_checks

SERVER = {"engine": "vllm", "engine version": "0.1", "target": "big"}


@pytest.fixture
def texts(run):
    """texts(with speculation, without it again): what is in these states, of 40 requests; the
    others are the same.
    """

    def make(drafted=(), plain=(), known=True, **fields):
        def states(at):
            return {
                "text": drafted[at] if at < len(drafted) else "same",
                "plain_text": (plain[at] if at < len(plain) else "same") if known else None,
            }

        return run(rows=states, tested=SERVER, **fields)

    return make


PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("before", "drafted", "plain", "verdict"),
    [
        (None, [], [], PASS),
        (None, ["near tie"] * 40, [], PASS),
        # By chance 2^-5 is above 2.5%, 2^-6 below.
        (None, ["other"] * 5, [], OPEN),
        (None, ["other"] * 6, [], FAIL),
        # A cause that nobody knows may be a near tie.
        (None, ["unknown"] * 40, [], OPEN),
        # The same number differ without speculation, on other requests.
        (None, ["unknown"] * 3, ["same"] * 3 + ["unknown"] * 3, PASS),
        (None, ["unknown"] * 4, ["same"] * 4 + ["unknown"] * 3, OPEN),
        # 7 against 1: nine of 2^8.
        (None, ["other"] * 7, ["same"] * 7 + ["other"], OPEN),
        (None, ["other"] * 9, ["same"] * 9 + ["other"], FAIL),
        # A server that was not asked twice without speculation cannot fail.
        (None, ["other"] * 40, None, OPEN),
        (None, [], None, PASS),
        # Differences that the baseline showed too are not new.
        (["other"] * 20, ["other"] * 20, [], PASS),
        (["other"] * 15, ["other"] * 20, [], OPEN),
        ([], ["other"] * 20, [], FAIL),
    ],
)
def test_differences_beyond_those_without_speculation_are_judged(
    run, texts, before, drafted, plain, verdict
):
    old = run() if before is None else texts(before)
    result = judge(old, texts(drafted, plain or (), known=plain is not None))
    assert result.texts.verdict is result.verdict is verdict  # nothing else changed
    known = None if before is None else before.count("other")
    assert result.texts.baseline_differ == known


def written(run, drafted, output="plain", **fields):
    rows = {"output": output, "drafted": drafted}
    return run(rows=lambda at: rows, **{"tested": SERVER} | fields)


@pytest.mark.parametrize(("now", "verdict"), [("plain", PASS), ("tie", PASS), ("else", OPEN)])
def test_a_server_alone_is_held_against_what_the_same_one_wrote_in_the_baseline(run, now, verdict):
    """Without speculation, or with it: what differed there is not new."""
    old, new = written(run, "tie"), written(run, now, output=None)
    found = judge(old, new)
    assert found.texts is not None
    assert found.texts.against_baseline
    assert found.verdict is verdict


@pytest.mark.parametrize(
    "changed", [{"engine version": "0.2"}, {"target": "other"}, {"engine": ""}]
)
def test_another_build_may_write_other_texts_and_is_said_not_to_be_judged(run, changed):
    server = {name: value for name, value in (SERVER | changed).items() if value}
    found = judge(written(run, "tie"), written(run, "else", output=None, tested=server))
    assert found.texts is None
    assert found.notes.count(TEXTS_NOT_JUDGED) == ("engine" in server)


def test_nothing_is_said_of_texts_that_no_server_wrote(run):
    assert TEXTS_NOT_JUDGED not in judge(run(), run()).notes


@pytest.mark.parametrize(
    ("drafted", "known", "words"),
    [
        ([], True, "output check: 40 of 40 answers match plain decoding: pass"),
        (["near tie"] * 2, True, "38 of 40 answers match plain decoding; 2 differ (near tie): p"),
        (["unknown"], True, "1 differs (cause unknown); plain decoding repeated: 0 of 40 differ"),
        (["other"], False, "1 differs (no near tie); plain decoding repeated: unknown: inc"),
    ],
)
def test_a_line_names_the_cause_as_far_as_it_is_known(run, texts, drafted, known, words):
    ((_, _, line),) = other_checks(judge(run(), texts(drafted, known=known)))
    assert words in line


def test_of_the_run_that_the_baseline_was_made_from_the_texts_are_open_too(texts):
    same = texts()
    result = judge(same, same)
    assert result.texts.verdict is result.verdict is OPEN

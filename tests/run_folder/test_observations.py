"""Which records count, whatever came first, was interrupted, or is there twice."""

from itertools import chain

import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import NGRAM, SMALL, manifest

from draftbench.records import MachineState, StopRule, WorkerFacts
from draftbench.run_folder.observations import Observations
from draftbench.run_folder.run import run_of
from draftbench.run_folder.served import OTHER_DRAFTING

REQUESTS = ("a", "b", "c")
CANDIDATES = (SMALL, NGRAM)
RUNS = {
    "built-in": manifest(specs={"small": "small", "ngram": "ngram", "ngram+small": ""}, ks=(2,)),
    "engine": manifest(specs={"small": "small", "ngram": "ngram"}, ks=(2, 4), engine="vllm"),
}


def responses():
    """Of three prompts, of which two are as long as each other."""
    sizes = dict(zip(REQUESTS, (9, 9, 20), strict=True))
    fields = {"origin": st.sampled_from(["target"]), "digest": st.sampled_from(["", "again"])}
    return st.builds(
        lambda request, **made: scenes.trajectory(request, 5, prompt_tokens=sizes[request], **made),
        st.sampled_from(REQUESTS),
        **fields,
    )


def replays():
    name, accept = (
        st.sampled_from(REQUESTS),
        st.lists(st.sampled_from((0.0, 1.0)), min_size=4, max_size=4),
    )
    of_model = st.builds(lambda r, a: scenes.replay(a, SMALL, request=r), name, accept)
    looked_up = st.builds(
        lambda r, m: scenes.lookup((2, 2, 1, 1), (m, 0, 0, 1), 2, r), name, st.integers(0, 2)
    )
    return of_model | looked_up


def decodes():
    return st.builds(
        lambda candidate, k, load, **made: scenes.decode(
            candidate, k, 1.0, concurrency=load, **made
        ),
        st.sampled_from(CANDIDATES),
        st.sampled_from((0, 2, 3)),
        st.sampled_from((1, 4)),
        request=st.sampled_from(REQUESTS),
        process=st.sampled_from("pqr"),
    )


def passes():
    return st.builds(
        lambda candidate, seconds, **made: scenes.step(candidate, seconds, block="small", **made),
        st.sampled_from((None, SMALL)),
        st.sampled_from((0.1, 0.2)),
        process=st.sampled_from("pq"),
        new_tokens=st.sampled_from((1, 3)),
    )


def sessions(errors=(None, None, None, "HTTP 500")):
    """What one server answered at one load: all three requests, or some, and some again."""

    def answer(server, load, request, error, tie):
        candidate, k, repeat = SERVERS[server]
        at, count = ("closed", load) if load else ("open", 3)
        return scenes.served(
            candidate, k, *(0.1, 0.2), repeat=repeat, server=server, process=server,
            request=request, load=at, concurrency=count, error=error, tie=tie,
            first_difference=None if tie is None else 1,
        )  # fmt: skip

    def answers(of):
        requests = st.permutations(REQUESTS) | st.lists(st.sampled_from(REQUESTS), max_size=4)
        error, tie = st.sampled_from(errors), st.sampled_from((None, True))
        return requests.flatmap(
            lambda names: st.tuples(
                *(
                    st.builds(answer, st.just(of[0]), st.just(of[1]), st.just(name), error, tie)
                    for name in names
                )
            )
        )

    return st.tuples(st.sampled_from(list(SERVERS)), st.sampled_from((1, 4, 0, 0))).flatmap(answers)


SERVERS = {
    **dict.fromkeys(("first", "second"), (None, 0, 0)),
    **dict.fromkeys(("third", "fourth", "fifth"), (SMALL, 2, 0)),
    "sixth": (SMALL, 2, 1),
}


def failures():
    return st.builds(
        lambda draft, reason, resolved: scenes.failure(draft, reason, resolved=resolved),
        st.sampled_from(("small", "ngram")),
        st.sampled_from(("slow", "broken")),
        st.booleans(),
    )


def others():
    """What is not of a response."""
    state = st.builds(
        MachineState, at=st.sampled_from((1.0, 2.0)), seconds=st.just(10.0), others=st.just(0.1),
        throttled=st.none(), process=st.sampled_from("pq"),
    )  # fmt: skip
    worker = st.builds(
        WorkerFacts, process=st.sampled_from("pq"), node=st.just("n"),
        environment=st.just(manifest().environment),
    )  # fmt: skip
    loaded = st.builds(
        lambda candidate, fingerprint: scenes.facts(candidate, fingerprint=fingerprint),
        st.sampled_from((None, SMALL)),
        st.sampled_from(("", "other")),
    )
    started = st.sampled_from(
        [scenes.engine_facts(c, k, server=name) for name, (c, k, _) in SERVERS.items()]
    )
    return state | worker | loaded | started


def histories(kind, errors=(None, None, None, "HTTP 500")):
    """Records of a sweep, shuffled, cut and in part repeated; an engine's in sessions."""
    alone = [responses(), replays(), failures(), others()]
    alone += [] if kind == "engine" else [decodes(), decodes(), passes()]
    some = st.lists(st.one_of(alone), min_size=6, max_size=30)
    served = st.lists(sessions(errors), min_size=4, max_size=8)
    if kind != "engine":
        return some
    return st.builds(lambda rows, answers: [*rows, *chain(*answers)], some, served)


def view(kind, index):
    return run_of(RUNS[kind], index)


KINDS = pytest.mark.parametrize("kind", sorted(RUNS))
ANY = (None, None, None, "HTTP 500", OTHER_DRAFTING)


@KINDS
@settings(max_examples=100)
@given(st.data())
def test_records_taken_in_part_by_part_count_as_all_at_once_and_as_those_that_count(kind, data):
    records = data.draw(histories(kind, ANY))
    at = data.draw(st.integers(0, len(records)))
    index = Observations(records[:at])
    list(index)  # asked in between
    index.add(records[at:])
    assert view(kind, index) == run_of(RUNS[kind], records)


@KINDS
@settings(max_examples=100)
@given(st.data())
def test_a_record_that_is_there_twice_counts_once(kind, data):
    records = data.draw(histories(kind, ANY))
    doubled = [record for record in records for _ in range(data.draw(st.integers(1, 2)))]
    again = Observations(records)
    again.add(list(again))
    expected = run_of(RUNS[kind], records)
    assert run_of(RUNS[kind], doubled) == view(kind, again) == expected


@settings(max_examples=50)
@given(st.data())
def test_responses_and_replays_are_in_one_order_whichever_worker_came_first(data):
    rows = [scenes.trajectory(name, 5, prompt_tokens=9 + 11 * (name == "c")) for name in "abc"]
    rows += [scenes.replay((1.0,) * 4, SMALL, request=name) for name in "abc"]
    rows += [scenes.lookup((2, 2, 1, 1), (1, 0, 0, 1), 2, name) for name in "abc"]
    run = run_of(RUNS["built-in"], data.draw(st.permutations(rows)))
    assert [row.request for row in run.trajectories] == ["c", "a", "b"]
    assert [(str(row.candidate), row.request) for row in run.replays] == [
        (draft, name) for draft in ("small", "ngram", "ngram+small") for name in "cab"
    ]


def answer(server, request, error=None, **changes):
    moments = () if error else (0.1, 0.2)
    fields = {"server": server, "request": request, "load": "open", "concurrency": 3}
    return scenes.served(SMALL, 2, *moments, error=error, **fields | changes)


WRITTEN = [scenes.trajectory(name, 2, origin="engine", margins=(), argmax=()) for name in "abc"]


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        # A session that was cut had less load, and so has one that is asked for the rest.
        ({"first": "ab"}, None),
        ({"first": "ab", "second": "c"}, None),
        ({"first": "ab", "second": "cab"}, "second"),
        ({"first": "abc", "second": "ca"}, "first"),
        # The last whole one counts, even if it failed to answer, since the requests came.
        ({"first": "abc", "second": "bca"}, "second"),
        ({"first": "abc", "second": "aBC"}, "second"),
    ],
)
def test_of_requests_at_their_times_of_arrival_the_last_whole_session_counts(asked, counts):
    rows = [
        answer(server, name.lower(), "HTTP 500" if name.isupper() else None)
        for server, names in asked.items()
        for name in names
    ]
    index = Observations([*WRITTEN, *rows])
    assert index.served == [row for row in rows if row.server == counts]
    assert index.answered() == {(SMALL, 2, 0, None, None)}
    # Each configuration, repeat and load has sessions of its own.
    others = [answer("third", name, repeat=1) for name in "abc"]
    others += [answer("second", "a", load="closed")]
    index.add(others)
    assert index.served == [row for row in rows if row.server == counts] + others


def test_a_session_is_no_longer_whole_once_there_is_another_response():
    rows = [answer("first", name) for name in "abc"]
    index = Observations([*WRITTEN, *rows])
    index.add([scenes.trajectory("d", 2)])
    assert index.served == []
    index.add([answer("second", name) for name in "abcd"])
    assert {row.server for row in index.served} == {"second"}


@given(st.permutations(range(5)), st.integers(0, 5))
def test_of_a_server_that_drafted_otherwise_no_answer_counts(order, shows):
    """Whether it showed before, between or after those that look right, or failed."""
    right = [answer("first", name, load=load) for name in "ab" for load in ("open", "closed")]
    failed = answer("first", "c", "timeout", load="closed")
    wrong = answer("first", "c", OTHER_DRAFTING)
    rows = [[*right, failed][at] for at in order]
    other = [answer("second", name, load="closed") for name in "ab"]
    index = Observations([*WRITTEN, *rows[:shows], wrong, *rows[shows:], *other])
    assert index.served == other
    assert index.answered() == {(SMALL, 2, 0, None, 3)}


@given(st.permutations("abc"), st.integers(0, 3))
def test_a_session_that_was_interrupted_and_continued_has_the_answers_of_a_whole_one(names, at):
    first = [answer("first", name, load="closed") for name in names[:at]]
    cut = answer("first", names[at % 3], "cut", load="closed")
    rest = [answer("second", name, load="closed") for name in names[at:]]
    run = run_of(RUNS["engine"], [*WRITTEN, *first, *[cut] * (at < 3), *rest])
    assert {row.key for row in run.served if row.error is None} == {(name, 0) for name in "abc"}
    assert run.unanswered == ()


def test_a_request_that_a_server_answers_at_last_is_answered():
    rows = [answer("first", "a", "HTTP 429", load="closed"), answer("first", "a", load="closed")]
    index = Observations([*WRITTEN, *rows])
    assert index.served == rows[1:] == index.answers((SMALL, 2, 0, None, 3))


RULES = [StopRule(kind="after", threshold=0.4), StopRule(kind="after", threshold=0.5)]


def test_runs_under_different_rules_are_different_measurements():
    """Of the same k; a process that lacks one of them did not finish what it decoded."""
    whole = [scenes.decode(SMALL, 3, 1.0, process="p", stop=stop) for stop in (None, *RULES)]
    part = [scenes.decode(SMALL, 3, 1.0, process="q", stop=stop) for stop in (None, RULES[0])]
    again = scenes.decode(SMALL, 3, 2.0, process="p", stop=RULES[1])
    assert Observations([*whole, *part, again]).decodes() == [*whole[:2], again]


def test_servers_under_different_rules_were_asked_different_things():
    rows = [answer("first", "a", load="closed", stop=stop) for stop in (None, *RULES)]
    index = Observations(rows)
    assert index.served == rows
    assert index.answered() == {(SMALL, 2, 0, stop, 3) for stop in (None, *RULES)}
    assert index.answers((SMALL, 2, 0, RULES[0], 3)) == [rows[1]]

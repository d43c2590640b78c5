"""From a source to its requests: merging, counting, sampling, errors."""

import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import query

from draftbench.errors import TrafficError
from draftbench.records import LongerPrompts, Request, Sampling
from draftbench.traffic import load, sample
from draftbench.traffic.sample import Entry, allocate, choose, rank
from draftbench.traffic.suites import suites

MARKER = "planted-marker-text"
pop = sample.heapq.heappop


def log(folder, *rows, name="log.jsonl"):
    path = folder / name
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def weights(traffic):
    return {request.prompt: request.weight for request in traffic.requests}


def test_exact_duplicates_merge_and_keep_their_weight_and_first_segment(tmp_path):
    path = log(
        tmp_path,
        {"model": "m", "prompt": "a", "response": "first", "segment": "y"},
        {"model": "m", "prompt": "b"},
        {"model": "m", "prompt": "a", "response": "second", "segment": "x"},
        {"model": "m", "prompt": "a", "n": 3},
        {"model": "m", "prompt": "a", "temperature": 0.5},
    )
    traffic = load(query(path))
    assert [(r.prompt, r.weight, r.source, r.segment) for r in traffic.requests] == [
        ("a", 5.0, "log.jsonl:1", "y"),
        ("b", 1.0, "log.jsonl:2", None),
        ("a", 1.0, "log.jsonl:5", None),
    ]
    assert traffic.requests[0].response == "first"
    summary = traffic.summary
    assert (summary.rows, summary.merged, summary.several, summary.left_out) == (5, 2, 1, {})


def test_what_was_dropped_is_counted_by_reason(tmp_path):
    body = {"messages": [{"role": "user", "content": "a"}]}
    path = log(
        tmp_path,
        {"body": body},
        {"body": body | {"logit_bias": {"1": 5}}},
        {"body": body | {"logit_bias": {"2": 5}}},
        {"body": body | {"frobnicate": 1}},
        "no json",
        *[{"prompt": ""}] * 9,
        {"prompt": "b"},
    )
    traffic = load(query(path, skip_bad=True))
    assert traffic.summary.left_out == {
        "not representable: logit_bias": 2,
        "not representable: frobnicate": 1,
    }
    assert (traffic.summary.rows, traffic.bad) == (15, 10)
    assert [(bad.first, bad.reason, bad.rows) for bad in traffic.summary.bad_rows] == [
        ("log.jsonl:5", "not JSON (invalid character (byte 4))", 1),
        ("log.jsonl:6", "the prompt is empty", 9),
    ]
    assert traffic.summary.form == "OpenAI request, prompt"


def test_rows_are_counted_by_what_is_assumed_since_they_do_not_say_it(tmp_path):
    """Known fault: one without a number was read at 1 and not counted."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    empty = [{"model": "m", "prompt": "a", "temperature": text} for text in ("", " ", "None")]
    path = log(tmp_path, chat, chat, *empty, {"prompt": "b"}, {"prompt": "c", "temperature": 0})
    # Of what is drawn greedily neither top_p nor top_k changes a token.
    others = {"top_p 1": 5, "no top_k": 5, "no limit on output tokens": 7}
    assumed = {"temperature 1": 5, "temperature 0": 1} | others
    assert load(query(path)).summary.assumed == assumed
    said = {"temperature": 0, "top_p": 1, "top_k": 5, "max_completion_tokens": 9}
    assert load(query(log(tmp_path, {"prompt": "c"} | said))).summary.assumed == {}


@pytest.mark.parametrize(
    ("rows", "changes", "message", "hint"),
    [
        (
            [{"timestamp": 0, "input_length": 5, "output_length": 2}],
            {},
            "log.jsonl:1: a trace of lengths only, without any text",
            "the prompts",
        ),
        (
            [{"prompt": "b", "temperature": MARKER}],
            {},
            "no row of `log.jsonl` can be used: log.jsonl:1: not representable: `temperature`: "
            "expected a number, got text",
            "docs/logs.md",
        ),
        (
            [{"instruction": MARKER}],
            {},
            "log.jsonl:1: no prompt or messages found; its fields are `instruction`",
            "--prompt-field instruction",
        ),
        (
            [{"question": MARKER}] * 2,
            {"prompt_field": "qestion", "skip_bad": True},
            "2 of 2 rows cannot be read: log.jsonl:1: nothing under `qestion`; its fields are "
            "`question` (2 such rows)",
            "--prompt-field question",
        ),
        (
            [{"prompt": "a"}, "x", {"prompt": ""}, {"prompt": ""}],
            {},
            "3 of 4 rows cannot be read: log.jsonl:2: not JSON (invalid character (byte 0)); "
            "log.jsonl:3: the prompt is empty (2 such rows)",
            "--skip-bad",
        ),
        ([], {}, "`log.jsonl` holds no rows", "at least one request"),
        (
            ["x", {"prompt": "a", "min_tokens": 5}],
            {"skip_bad": True},
            "no row of `log.jsonl` can be used: log.jsonl:2: not representable: min_tokens; "
            "log.jsonl:1: not JSON (invalid character (byte 0))",
            "docs/logs.md",
        ),
        (
            [{"prompt": "a", "segment": "s"}],
            {"segment_by": "tags.team"},
            "no row has a segment under `tags.team`; its fields are `prompt`, `segment`",
            "--segment-by",
        ),
        (
            [{"prompt": "a"}],
            {"response_field": "answer"},
            "no chosen request has a response under `answer`; its fields are `prompt`",
            "--response-field",
        ),
        ([{"prompt": "a"}], {"sample": 0}, "--sample must be at least 1", "--sample 1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_hint(tmp_path, rows, changes, message, hint):
    with pytest.raises(TrafficError) as raised:
        load(query(log(tmp_path, *rows), **changes))
    assert raised.value.message == message
    assert hint in raised.value.hint


@pytest.mark.parametrize("bad", ['"%s', '{"prompt": "%s", "top_k": -9}', '{"x": "%s"}', '{"%s": }'])
def test_no_text_of_a_row_stands_in_an_error(tmp_path, bad):
    with pytest.raises(TrafficError) as raised:
        load(query(log(tmp_path, bad % MARKER)))
    assert MARKER not in repr(raised.value) + raised.value.hint


TURNS = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("row", "chats"),
    [
        ({"prompt": "Hello"}, 0),
        ({"prompt": TURNS}, 1),
        ({"model": "m", "prompt": "Hello", "max_tokens": 9}, 0),
        ({"inputs": "Hello", "parameters": {}, "system": "Be brief."}, 1),
        ({"text": "Hello", "system": "Be brief."}, 1),
    ],
)
def test_a_request_of_turns_is_a_chat_in_whatever_form(tmp_path, row, chats):
    assert load(query(log(tmp_path, row))).summary.chats == chats


def test_a_sample_is_stratified_and_repeatable(tmp_path):
    rows = [{"prompt": str(i), "segment": "ab"[i % 10 == 0]} for i in range(200)]
    path = log(tmp_path, *rows)
    traffic = load(query(path, sample=20))
    segments = [request.segment for request in traffic.requests]
    assert (segments.count("a"), segments.count("b")) == (18, 2)
    assert sum(request.weight for request in traffic.requests) == pytest.approx(200)
    lines = [int(request.source.split(":")[1]) for request in traffic.requests]
    assert lines == sorted(lines)
    assert load(query(path, sample=20)) == traffic
    assert weights(load(query(path, sample=20, seed=1))) != weights(traffic)
    turned = log(tmp_path, *rows[::-1], name="turned.jsonl")
    assert weights(load(query(turned, sample=20))) == weights(traffic)


def test_the_digest_tells_whether_the_traffic_changed(tmp_path):
    first = load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "b"}))).digest
    again = load(query(log(tmp_path, {"prompt": "b"}, {"prompt": "a"}), sample=1)).digest
    assert first == again
    others = [
        load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "c"}))).digest,
        load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "b"}))).digest,
        load(query(log(tmp_path, {"prompt": "a"}, {"prompt": "b"}), key=b"other")).digest,
    ]
    assert len({first, *others}) == 4


def test_a_suite_is_read_by_name_and_by_its_own_segments():
    for suite in suites():
        traffic = load(query(f"suite:{suite.name}"))
        assert traffic.summary.rows == suite.requests
        assert not traffic.summary.left_out
        assert all(request.segment for request in traffic.requests)


@pytest.mark.parametrize("name", ["chatt", "suite:chat", "../suites/chat"])
def test_a_suite_that_is_not_there_is_refused(name):
    with pytest.raises(TrafficError, match=f"`suite:{name}` is not a built-in suite") as raised:
        load(query(f"suite:{name}"))
    near = "choose from: " if "/" in name else "did you mean `suite:chat`?"
    assert raised.value.hint.startswith(near)


def test_a_sample_keeps_no_more_requests_in_memory_than_it_may_choose(tmp_path, monkeypatch):
    """Of each segment as many as the sample has, in whichever order they are logged."""
    sizes = []
    monkeypatch.setattr(sample.heapq, "heappop", lambda heap: sizes.append(len(heap)) or pop(heap))
    rows = [{"prompt": str(i), "segment": "ab"[i % 4 == 0]} for i in range(100)]
    chosen = load(query(log(tmp_path, *rows), sample=8)).requests
    assert len(chosen) == 8
    assert sizes == [9] * (100 - 2 * 8)


strata = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=6)


def segments(*shape):
    """So many requests in each segment, which stand for 1 up to so many rows."""
    return {
        f"{segment}-{index}": Entry(float(1 + index % weight), str(segment))
        for segment, (size, weight) in enumerate(shape)
        for index in range(size)
    }


def chosen(entries, sample, seed):
    """The weight of each chosen request; of each segment all are kept."""
    kept = defaultdict(list)
    for name, entry in entries.items():
        request = Request(id=name, source="log:1", prompt="a", sampling=Sampling(temperature=0))
        kept[entry.segment].append((-rank(seed, name), request))
    return {request.id: request.weight for request in choose(entries, kept, sample)}


@pytest.mark.parametrize(
    ("totals", "sizes", "sample", "shares"),
    [
        # Quotas of 10 are 4.7, 3.4 and 1.9: floors 4, 3 and 1; the two left go to .9 and .7.
        ({"a": 47, "b": 34, "c": 19}, None, 10, {"a": 5, "b": 3, "c": 2}),
        # Every segment gets one while the sample has room.
        ({"big": 990, "x": 5, "y": 5}, None, 10, {"big": 8, "x": 1, "y": 1}),
        # A prompt asked a thousand times is one request; its room goes to the others.
        (
            {"same": 1000, "x": 10, "y": 10},
            {"same": 1, "x": 10, "y": 10},
            9,
            {"same": 1, "x": 4, "y": 4},
        ),
        # With more segments than requests the heaviest get one each.
        ({"a": 1, "b": 3, None: 2}, None, 2, {"a": 0, "b": 1, None: 1}),
    ],
)
def test_segments_share_a_sample_by_their_rows(totals, sizes, sample, shares):
    sizes = sizes or {segment: int(total) for segment, total in totals.items()}
    assert allocate(totals, sizes, sample) == shares


@given(strata, st.none() | st.integers(1, 60), st.integers(0, 9), st.randoms())
def test_a_sample_has_its_size_and_segments_keep_their_weight(shape, sample, seed, random):
    everything = segments(*shape)
    weights = chosen(everything, sample, seed)
    names = list(everything)
    random.shuffle(names)  # the order of the rows does not decide
    shuffled = chosen({name: everything[name] for name in names}, sample, seed)
    assert shuffled.keys() == weights.keys()
    if sample is None or sample >= len(everything):
        assert weights == {name: entry.weight for name, entry in everything.items()}
        return
    assert len(weights) == sample
    assert list(weights) == [name for name in everything if name in weights]
    of_segment: defaultdict[str, list[str]] = defaultdict(list)
    for name in weights:
        of_segment[everything[name].segment].append(name)
    assert len(of_segment) == min(sample, len(shape))
    for segment, names in of_segment.items():
        total = sum(entry.weight for entry in everything.values() if entry.segment == segment)
        assert sum(weights[name] for name in names) == pytest.approx(total)
        # Inside a segment weights keep their proportions.
        factors = [weights[name] / everything[name].weight for name in names]
        assert factors == pytest.approx([factors[0]] * len(factors))


def test_a_new_segment_of_equal_share_leaves_the_choice_within_the_others():
    alone = set(chosen(segments((50, 1)), 5, 0))
    beside = set(chosen(segments((50, 1), (50, 1)), 10, 0))
    assert alone == {name for name in beside if name.startswith("0-")}


def test_fields_that_are_not_read_are_named_the_longest_first(tmp_path):
    row = {"model": "m", "prompt": "a"} | {
        "custom": 1,
        "passage": "a long text",
        "metadata": {"a": 1},
        "empty": None,
    }
    traffic = load(query(log(tmp_path, row)))
    assert list(traffic.summary.unread.items()) == [("passage", 1), ("custom", 1)]


def test_a_source_without_a_single_request_is_not_read_to_its_end(tmp_path):
    path = log(tmp_path, *[{"question": "a"}] * 3000)
    with pytest.raises(TrafficError, match=r"^1000 of 1000 rows cannot be read: log\.jsonl:1: "):
        load(query(path))


def test_prompts_far_longer_than_those_drawn_are_counted_in_rows(tmp_path):
    short = [{"prompt": f"{at:010}"} for at in range(7)]
    path = log(tmp_path, *short, *({"prompt": "y" * length} for length in (20, 21, 300)))
    assert load(query(path)).summary.longer == LongerPrompts(drawn=300, longest=300, share=0.0)
    draws = (load(query(path, sample=1, seed=seed)) for seed in range(99))
    found = next(drawn for drawn in draws if len(drawn.requests[0].prompt) == 10).summary.longer
    assert found == LongerPrompts(drawn=10, longest=300, share=0.2)

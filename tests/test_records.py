"""Records of the right types that no sweep can have written."""

from __future__ import annotations

import msgspec
import pytest
from scenes import decode, facts, failure, replay, served, step, trajectory

from draftbench.records import AnyObservation, Candidate, LookupReplay, candidate_names

DRAFT = Candidate(draft="d")
LOOKUP = LookupReplay(
    request="r", sample=0, candidate=Candidate(draft="ngram"), window=2, proposed=(2, 0),
    matched=(1, 0),
)  # fmt: skip
RESPONSE = trajectory(length=2)
REPLAY = replay((1.0, 0.0), DRAFT, overlap=(1.0, 0.5))
ROUNDS = {"draft_seconds": (0.1, 0.1), "verify_seconds": (1.0, 1.0)}
DECODE = decode(
    DRAFT, 2, 2.2, proposed=(2, 1), accepted=(1, 0), cut=(0, 1), output_tokens=4, **ROUNDS
)
STEP = step(DRAFT, 0.5)
FACTS = facts(None)
SERVED = served(DRAFT, 2, 0.5, 0.7, chunks=(1, 3), by_round=((2, 2), (2, 0)))
# A server may count a token more than it was allowed.
WRITTEN = trajectory(length=2, limit=1, origin="engine", margins=(), argmax=())


def read(line: object) -> AnyObservation:
    return msgspec.json.decode(msgspec.json.encode(line, enc_hook=list), type=AnyObservation)


@pytest.mark.parametrize(
    "good", [RESPONSE, WRITTEN, REPLAY, LOOKUP, DECODE, SERVED, STEP, FACTS, failure("d", "")]
)
def test_what_a_sweep_writes_is_read_back(good):
    assert read(good) == good


def test_levels_of_one_draft_are_named_together():
    names = [("a", "none"), ("b", "int8"), ("a", "int4")]
    assert candidate_names(Candidate(draft, quant) for draft, quant in names) == (
        "a (unquantized, int4), b:int8"
    )


@pytest.mark.parametrize(
    ("good", "changes", "words"),
    [
        (RESPONSE, {"output_tokens": 3}, "`margins` has 2 entries, not 3"),
        (RESPONSE, {"looping": 3}, "`looping` is more than the output"),
        (RESPONSE, {"limit": 0}, r">= 1 - at `\$\.limit`"),
        (RESPONSE, {"limit": 1}, "`output_tokens` is more than `limit`"),
        (RESPONSE, {"finish": "banana"}, r"matching regex .* - at `\$\.finish`"),
        (WRITTEN, {"finish": "stop_sequence"}, r"matching regex .* - at `\$\.finish`"),
        (RESPONSE, {"origin": "user"}, r"matching regex .* - at `\$\.origin`"),
        (RESPONSE, {"weight": 0.0}, r"> 0.0 - at `\$\.weight`"),
        (RESPONSE, {"output_tokens": 0}, r">= 1 - at `\$\.output_tokens`"),
        (REPLAY, {"rank": (0,)}, "`rank` has 1 entries, not 2"),
        (REPLAY, {"overlap": (0.5,)}, "`overlap` has 1 entries, not 2"),
        (REPLAY, {"accept": (1.5, 0.0)}, r"<= 1.0 - at `\$\.accept\[0\]`"),
        (REPLAY, {"accept": (-0.5, 0.0)}, r">= 0.0 - at `\$\.accept\[0\]`"),
        (REPLAY, {"accept": (0.5, 0.0)}, "between 0 and 1, and drafting was greedy"),
        (REPLAY, {"sample": -1}, r">= 0 - at `\$\.sample`"),
        (REPLAY, {"rank": (0, 10**18)}, r"<= 1000000000000000 - at `\$\.rank\[1\]`"),
        (LOOKUP, {"matched": (1,)}, "`matched` has 1 entries, not 2"),
        (LOOKUP, {"margin": (0.5,)}, "`margin` has 1 entries, not 2"),
        (
            LOOKUP,
            {"confidences": {"lengths": (1,), "of_all": (0.5,), "of_ten": (0.5,)}},
            "`confidences` has 1 entries, not 2",
        ),
        (
            LOOKUP,
            {"confidences": {"lengths": (1, 1), "of_all": (0.5,), "of_ten": (0.5, 0.5)}},
            "`of_all` has 1 entries, not 2",
        ),
        (LOOKUP, {"matched": (1, 1)}, "more than was proposed"),
        (LOOKUP, {"proposed": (3, 0)}, "more than the window"),
        (DECODE, {"cut": (0,)}, "`cut` has 1 entries, not 2"),
        (DECODE, {"active": (1,)}, "`active` has 1 entries, not 2"),
        (DECODE, {"accepted": (3, 0)}, "more than was proposed"),
        (DECODE, {"proposed": (3, 1)}, "`proposed` is more than k"),
        (DECODE, {"drafted": (2,)}, "`drafted` has 1 entries, not 2"),
        (DECODE, {"drafted": (1, 1)}, "`proposed` is more than was drafted"),
        (DECODE, {"drafted": (2, 9)}, "`drafted` is more than k"),
        (DECODE, {"active": (2, 1)}, "`active` more than `concurrency`"),
        (DECODE, {"output_tokens": 5}, "`accepted` makes 4 tokens, not 5"),
        (DECODE, {"output_tokens": 3}, "`accepted` makes 4 tokens, not 3"),
        (DECODE, {"accepted": (2, 1), "cut": (0, 0)}, "`accepted` makes 6 tokens, not 4"),
        (DECODE, {"draft_seconds": (0.1, 1e-300)}, "`draft_seconds`: 1e-300 is not a time that"),
        (DECODE, {"verify_seconds": (1e-320, 1.0)}, "`verify_seconds`: 1e-320 is not a time that"),
        (DECODE, {"decode_seconds": 1e-11}, "`decode_seconds`: 1e-11 is not a time that a clock"),
        (DECODE, {"prefill_seconds": 1e-300}, "`prefill_seconds`: 1e-300 is not a time"),
        (DECODE, {"draft_prefill_seconds": 1e-300}, "`draft_prefill_seconds`: 1e-300 is not a"),
        (DECODE, {"decode_seconds": -1.0}, r">= 0.0 - at `\$\.decode_seconds`"),
        (DECODE, {"concurrency": 0}, r">= 1 - at `\$\.concurrency`"),
        (DECODE, {"output_tokens": 0}, r">= 1 - at `\$\.output_tokens`"),
        (DECODE, {"decode_seconds": 1e300}, r"<= 1000000000000000.0 - at `\$\.decode_seconds`"),
        (STEP, {"concurrency": 0}, r">= 1 - at `\$\.concurrency`"),
        (STEP, {"seconds": ()}, r"length >= 1 - at `\$\.seconds`"),
        (STEP, {"seconds": (0.5, 0.0)}, r"> 0.0 - at `\$\.seconds\[1\]`"),
        (STEP, {"seconds": (0.5, 1e-300)}, "`seconds`: 1e-300 is not a time that a clock can show"),
        (WRITTEN, {"margins": (1.0, 1.0)}, "`margins` has 2 entries, not 0"),
        (SERVED, {"chunks": (4,)}, "`chunks` has 1 entries, not 2"),
        (SERVED, {"chunks": (1, 2)}, "do not add up to the output"),
        (SERVED, {"arrivals": (0.5, 0.5 - 2**-3)}, "`arrivals`: -0.125 is not a time that a clock"),
        (SERVED, {"arrivals": (1e-300, 0.7)}, "`arrivals`: 1e-300 is not a time"),
        (SERVED, {"decode_seconds": 1e-300}, "`decode_seconds`: 1e-300 is not a time"),
        (SERVED, {"counts": {"by_round": ((2, 2), (2, 3))}}, "accepted than proposed"),
        (FACTS, {"context_length": 0}, r">= 1 - at `\$\.context_length`"),
        (FACTS, {"parameters": 0}, r">= 1 - at `\$\.parameters`"),
    ],
)
def test_what_no_sweep_writes_is_refused_by_its_field(good, changes, words):
    with pytest.raises(msgspec.ValidationError, match=words):
        read(msgspec.to_builtins(good, enc_hook=list) | changes)


def test_of_a_response_that_ends_inside_a_proposal_the_last_round_adds_no_token_of_the_target():
    ended = {"accepted": (1, 1), "cut": (0, 0), "output_tokens": 4}
    assert read(msgspec.to_builtins(DECODE) | ended).accepted == (1, 1)


@pytest.mark.parametrize("line", ["NaN", "1e999", "-Infinity"])
def test_no_time_is_endless_or_no_number(line):
    text = msgspec.json.encode(STEP).replace(b'"seconds":[0.5]', f'"seconds":[{line}]'.encode())
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=AnyObservation)


def test_nor_can_a_sweep_write_it():
    with pytest.raises(ValueError, match="`rank` has 0 entries"):
        msgspec.structs.replace(REPLAY, rank=())

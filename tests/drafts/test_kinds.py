"""What a kind of draft says of itself, and where it is listed."""

import pytest

from draftbench.drafts.built_in import HEADS, SERVED, WITH_WEIGHTS
from draftbench.drafts.kinds import DRAFT_KINDS, draft_name, kind_of, parsed, parts_of
from draftbench.errors import UsageError
from draftbench.records import Candidate
from draftbench.training.plan import TRAINABLE


def those(*facts):
    return {
        method for method, kind in DRAFT_KINDS.items() if all(getattr(kind, fact) for fact in facts)
    }


def test_every_kind_is_loaded_where_it_says_that_it_is():
    from_text = those("from_text")
    assert from_text == {"ngram", "suffix", "suffix-alone"}
    assert those("built_in") == {*WITH_WEIGHTS, *from_text, "stack"}
    assert those("built_in", "reads_states") == HEADS.keys()
    assert those("replayed") == {*SERVED, *from_text}
    assert those("trainable") == TRAINABLE.keys()
    assert those("is_model") == {method for method, kind in DRAFT_KINDS.items() if not kind.written}
    assert those("trainable") | those("stackable") <= WITH_WEIGHTS.keys()


@pytest.mark.parametrize(
    ("entry", "method", "model", "name"),
    [
        ("ngram", "ngram", "", "ngram"),
        ("mtp", "mtp", "", "mtp"),
        ("suffix-alone", "suffix-alone", "", "suffix-alone"),
        ("eagle3:a/b@main", "eagle3", "a/b@main", "eagle3:b"),
        ("spec:x.json", "raw", "x.json", "spec:x.json"),
        ("./eagle3:b", "draft-model", "./eagle3:b", "eagle3:b"),
        ("ngram+eagle3:a/b", "eagle3", "a/b", "ngram+eagle3:b"),
    ],
)
def test_an_entry_of_drafts_says_its_kind_and_its_model(entry, method, model, name):
    assert parsed(entry) == (method, model)
    assert draft_name(entry) == name
    assert kind_of(entry).method == ("stack" if "+" in entry else method)


@pytest.mark.parametrize(
    "entry",
    ["eagle3:", "mtp:x", "ngram:x", "ngram+", "ngram+self", "ngram+ngram", "ngram+suffix",
     "ngram+dflash:x", "ngram+ngram+x"],
)  # fmt: skip
def test_an_entry_that_says_too_little_or_too_much_is_refused(entry):
    for read in (parsed, draft_name):
        with pytest.raises(UsageError):
            read(entry)


def test_what_a_candidate_is_put_together_from_ends_with_its_weights():
    assert parts_of(Candidate(draft="ngram+small", quant="int8")) == (
        Candidate(draft="ngram"),
        Candidate(draft="small", quant="int8"),
    )
    for whole in ("small", "ngram", "self", "eagle3:head"):
        assert parts_of(Candidate(draft=whole, quant="int8")) == ()

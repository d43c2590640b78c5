"""Which tokens two vocabularies share, by hand."""

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel, Metaspace

from draftbench.decoder.scripted_model import ScriptedRunner
from draftbench.decoder.translated import TranslatedRunner
from draftbench.models.translation import keeps_ids, needs_translation, shared_tokens, translated
from tests.models.conftest import WORDS

NEVER = Metaspace(prepend_scheme="never")


@pytest.fixture
def pair(workshop):
    """A byte-level target and a sentence-piece draft, whose last word has no row."""
    words = ["?", "a", "Ġa", "Ġthe", "▁x", "in"]
    target = workshop.source("t", words, spaces=ByteLevel(add_prefix_space=False))
    words = ["▁the", "▁a", "b", "?", "▁x", "a", "in"]
    return target, workshop.source("d", words, rows=6, spaces=NEVER)


def test_tokens_are_shared_by_their_strings_whichever_mark_stands_for_the_space(pair):
    """`▁x` begins with the draft's mark, not with the target's, and so is another string."""
    assert shared_tokens(*pair) == {0: 3, 1: 5, 2: 1, 3: 0}


def test_ids_are_kept_where_every_token_of_the_target_has_its_own_in_the_draft(workshop):
    target = workshop.source("target")
    for name, options, kept, translates in (
        ("same", {}, True, False),
        ("more", {"words": [*WORDS, "more"], "rows": 300}, True, False),
        ("wider", {"rows": 512}, True, True),
        ("narrower", {"rows": 299}, False, True),
        ("fewer", {"words": WORDS[:299], "rows": 300}, False, True),
        ("swapped", {"words": [*WORDS[:298], WORDS[299], WORDS[298]]}, False, True),
    ):
        draft = workshop.source(name, **options)
        assert keeps_ids(target, draft) is kept, name
        assert needs_translation(target, draft) is translates, name


@pytest.mark.parametrize(
    ("special", "unknown"), [({"unk_token": "b"}, 2), ({"eos_token": "▁x"}, 4), ({}, 0)]
)
def test_what_the_draft_lacks_is_read_as_its_unknown_token_or_its_end(
    pair, workshop, special, unknown
):
    words, read = ["▁the", "▁a", "b", "?", "▁x", "a"], []
    draft = workshop.source("d2", words, spaces=NEVER, **special)

    def script(tokens):
        read.append(tokens[-1])
        return torch.zeros(6)

    runner = translated(ScriptedRunner(script, 6), pair[0], draft)
    assert isinstance(runner, TranslatedRunner)
    runner.forward(torch.tensor([2, 5]), runner.new_cache(4), every=False)
    assert read == [1, unknown]


def test_a_draft_of_the_same_ids_stays_as_it_is(workshop):
    runner = ScriptedRunner(lambda tokens: torch.zeros(300), 300)
    assert translated(runner, workshop.source("t"), workshop.source("d")) is runner

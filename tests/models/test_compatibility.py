"""Which drafts can speak to which targets, judged by what their ids mean; no weights exist here."""

import pytest

from draftbench.errors import PairError
from draftbench.models.compatibility import check_pair
from draftbench.models.source import ModelSource

# The same 300 words as in the workshop: "<unk>", "<end>", w0 … w297 (id of w_i is i + 2).
WORDS = ["<unk>", "<end>", *(f"w{i}" for i in range(298))]


def test_two_models_of_one_tokenizer_pair_without_caveats(workshop):
    assert check_pair(workshop.source("target"), workshop.source("draft")) == ()


def test_rows_that_only_pad_a_vocabulary_are_fine(workshop):
    small, padded = workshop.source("small"), workshop.source("padded", rows=512)
    assert check_pair(small, padded) == ()
    assert check_pair(padded, small) == ()


def test_the_first_differing_token_is_named(workshop):
    words = [*WORDS]
    words[42], words[77] = "other", "another"
    with pytest.raises(PairError) as caught:
        check_pair(workshop.source("target"), workshop.source("draft", words))
    assert "id 42: 'w40' in the target, 'other' in the draft" in caught.value.message
    assert "300 and 300 tokens, 298 with the same id and text" in caught.value.message
    assert "`draft` cannot draft for `target`" in caught.value.message
    assert caught.value.hint


def test_equal_sizes_do_not_make_a_pair(workshop):
    turned = [*WORDS[:2], *reversed(WORDS[2:])]
    with pytest.raises(PairError, match="id 2: 'w0' in the target, 'w297' in the draft"):
        check_pair(workshop.source("target"), workshop.source("draft", turned))


def test_a_draft_without_rows_for_the_targets_tokens_is_refused(workshop):
    # Its tokenizer knows the words, its embedding ends at id 199.
    with pytest.raises(PairError, match=r"no row for ids from 200 \('w198'\) on"):
        check_pair(workshop.source("target"), workshop.source("draft", rows=200))


def test_a_draft_with_a_smaller_tokenizer_is_refused(workshop):
    with pytest.raises(PairError, match=r"no token 200 \('w198'\)"):
        check_pair(workshop.source("target"), workshop.source("draft", WORDS[:200], rows=300))


def test_a_few_missing_tokens_are_a_caveat(workshop):
    # 297 of 300: exactly the one percent that may be missing.
    caveats = check_pair(workshop.source("target"), workshop.source("draft", WORDS[:297]))
    assert caveats == ("the draft lacks 3 of the target's tokens and never proposes them",)


def test_a_draft_with_additional_tokens_is_fine(workshop):
    assert check_pair(workshop.source("target"), workshop.source("d", [*WORDS, "more"])) == ()


def test_other_special_tokens_are_a_caveat(workshop):
    caveats = check_pair(workshop.source("target"), workshop.source("draft", eos_token="w0"))
    assert caveats == (
        "eos_token is '<end>' in the target and 'w0' in the draft; the target's is used",
    )


def test_other_chat_templates_are_a_caveat(workshop):
    one = workshop.source("one", chat_template="{{ messages[0].content }}")
    other = workshop.source("other", chat_template="{{ messages[-1].content }}")
    plain = workshop.source("plain")
    assert check_pair(one, other) == ("the chat templates differ; the target's is used for both",)
    assert "the draft has no chat template" in check_pair(one, plain)[0]
    assert check_pair(plain, one) == ()


def test_a_shorter_context_of_the_draft_is_a_caveat(workshop):
    short = workshop.source("short", max_position_embeddings=16)
    assert check_pair(workshop.source("target"), short) == (
        "the draft's context ends at 16 tokens (target: 64); no draft beyond",
    )
    assert check_pair(short, workshop.source("long")) == ()


def test_the_embedded_foreign_draft_is_refused_and_its_family_accepted(embedded):
    target, foreign = (ModelSource(str(embedded / name)) for name in ("target", "foreign"))
    with pytest.raises(PairError, match=r"their vocabularies differ .2048 and 1024 tokens"):
        check_pair(target, foreign)
    for name in ("draft", "distilled"):
        assert check_pair(target, ModelSource(str(embedded / name))) == ()

"""Which drafts can speak to which targets, judged by what their ids mean; no weights exist here."""

import random
import time

import pytest
from transformers import BartConfig, BertConfig, GPT2Config, LlamaConfig

from draftbench.errors import ModelError, PairError
from draftbench.models.check_result import Overlap
from draftbench.models.compatibility import check_pair, pair_facts, writing_obstacle
from draftbench.models.source import ModelSource
from tests.models.conftest import WORDS

OTHER = [*WORDS[:42], "other", *WORDS[43:77], "another", *WORDS[78:]]


@pytest.mark.parametrize(
    ("target", "draft", "caveats"),
    [
        ({}, {}, ()),
        # Rows that only pad a vocabulary, and tokens that only the draft has.
        ({}, {"rows": 512}, ()),
        ({"rows": 512}, {}, ()),
        ({}, {"words": [*WORDS, "more"]}, ()),
        # 297 of 300: exactly the one percent that may be missing.
        (
            {},
            {"words": WORDS[:297]},
            ("the draft lacks 3 of the target's tokens and never proposes them",),
        ),
        (
            {},
            {"eos_token": "w0"},
            ("eos_token is '<end>' in the target and 'w0' in the draft; the target's is used",),
        ),
        (
            {"chat_template": "{{ messages[0].content }}"},
            {"chat_template": "{{ messages[-1].content }}"},
            ("the chat templates differ; the target's is used for both",),
        ),
        (
            {"chat_template": "{{ messages[0].content }}"},
            {},
            (
                "the draft has no chat template: it was probably not trained on this dialogue "
                "format",
            ),
        ),
        ({}, {"chat_template": "{{ messages[0].content }}"}, ()),
        (
            {},
            {"max_position_embeddings": 16},
            ("the draft's context ends at 16 tokens (target: 64); nothing is drafted beyond",),
        ),
        ({"max_position_embeddings": 16}, {}, ()),
    ],
)
def test_a_pair_that_works_has_its_caveats(workshop, target, draft, caveats):
    assert check_pair(workshop.source("t", **target), workshop.source("d", **draft)) == caveats


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ({"words": OTHER}, "id 42: 'w40' in the target, 'other' in the draft"),
        ({"words": OTHER}, "their vocabularies differ (first at "),
        ({"words": OTHER}, "`draft` cannot draft for `target`"),
        # Equal sizes do not make a pair.
        (
            {"words": [*WORDS[:2], *reversed(WORDS[2:])]},
            "id 2: 'w0' in the target, 'w297' in the draft",
        ),
        # Its tokenizer knows the words, its embedding ends at id 199.
        ({"rows": 200}, "no row for ids from 200 ('w198') on"),
        ({"words": WORDS[:200], "rows": 300}, "no token 200 ('w198')"),
    ],
)
def test_a_pair_whose_ids_mean_different_texts_is_refused(workshop, draft, words):
    with pytest.raises(PairError) as caught:
        check_pair(workshop.source("target"), workshop.source("draft", **draft))
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("config", "architecture", "kind"),
    [
        (BertConfig, "BertForMaskedLM", "an encoder"),
        (BertConfig, "BertModel", "an encoder"),
        (BertConfig, "BertLMHeadModel", None),
        (BartConfig, "BartForConditionalGeneration", "an encoder-decoder model"),
        (LlamaConfig, "LlamaForSequenceClassification", "a classifier or reward model"),
        (LlamaConfig, "LlamaForCausalLM", None),
        (LlamaConfig, "LlamaModel", None),
        (LlamaConfig, None, None),
        (GPT2Config, "GPT2LMHeadModel", None),
    ],
)
def test_only_a_checkpoint_of_a_causal_language_model_writes_text(
    workshop, config, architecture, kind
):
    source = workshop.source("model")
    named = None if architecture is None else [architecture]
    config(vocab_size=300, architectures=named).save_pretrained(source.spec)
    found = writing_obstacle(ModelSource(source.spec))
    if kind is None:
        assert found is None
    else:
        assert found.startswith(f"`model` ({architecture}) is {kind}, which ")
        with pytest.raises(ModelError, match=r"is an? .* which"):
            check_pair(workshop.source("target"), ModelSource(source.spec))


def test_the_embedded_foreign_draft_is_refused_and_its_family_accepted(embedded):
    target, foreign = (ModelSource(str(embedded / name)) for name in ("target", "foreign"))
    with pytest.raises(PairError, match=r"their vocabularies differ .the draft has no row for"):
        check_pair(target, foreign)
    for name in ("draft", "distilled"):
        assert check_pair(target, ModelSource(str(embedded / name))) == ()


def test_overlap_is_weighed_by_the_traffic(workshop):
    swapped = [*WORDS[:5], "w4", "w3", *WORDS[7:]]
    target, draft = workshop.source("target"), workshop.source("draft", swapped)
    words = pair_facts(target, draft, {5: 1.0, 7: 3.0}).vocabulary
    assert words.traffic == Overlap(same_id=0.75, same_text=1.0)
    assert words.all_tokens == Overlap(same_id=298 / 300, same_text=1.0)
    assert words.first_regular_difference.id == 5


def test_a_templates_difference_is_a_unified_diff(workshop):
    one = workshop.source("one", chat_template="a\nb\nc")
    other = workshop.source("other", chat_template="a\nx\nc")
    shown = pair_facts(one, other).template_difference
    assert shown == ("--- target", "+++ draft", "@@ -1,3 +1,3 @@", " a", "-b", "+x", " c")


@pytest.mark.slow
def test_the_difference_of_endless_templates_ends(workshop):
    """Lines that are rare enough to be looked for, and everywhere."""
    chance = random.Random(0)
    long = ["\n".join(f"line {chance.randrange(200)}" for _ in range(40_000)) for _ in range(2)]
    one, other = (workshop.source(f"m{n}", chat_template=text) for n, text in enumerate(long))
    began = time.monotonic()
    shown = pair_facts(one, other).template_difference
    assert time.monotonic() - began < 20
    assert shown[-1] == "(not compared after line 1000)"
    assert len(shown) < 3000

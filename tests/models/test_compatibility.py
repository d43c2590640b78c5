"""Which drafts can speak to which targets, judged by what their ids mean; no weights exist here."""

import pytest
from transformers import BartConfig, BertConfig, GPT2Config, LlamaConfig

from draftbench.engines.pair_rules import Overlap
from draftbench.errors import ModelError, PairError
from draftbench.models import compatibility
from draftbench.models.compatibility import check_pair, covers, pair_facts, writing_obstacle
from draftbench.models.source import ModelSource
from tests.models.conftest import WORDS

LACKS = "the draft lacks {} of the target's tokens and never proposes them"
DIFFER = (
    "ids differ (first {} in the target, {} in the draft), so that tokens are translated by their "
    "text"
)
OTHER = [*WORDS[:42], "other", *WORDS[43:77], "another", *WORDS[78:]]


@pytest.mark.parametrize(
    ("target", "draft", "caveats"),
    [
        ({}, {}, ()),
        # Rows that only pad a vocabulary, and tokens that only the draft has.
        ({}, {"rows": 512}, ()),
        ({"rows": 512}, {}, ()),
        ({}, {"words": [*WORDS, "more"]}, ()),
        # Exactly the half that has to be shared, in the tokenizer or by rows.
        ({}, {"words": WORDS[:150]}, (LACKS.format(150),)),
        ({}, {"rows": 150}, (LACKS.format(150),)),
        ({}, {"words": OTHER}, (LACKS.format(2), DIFFER.format("42: 'w40'", "'other'"))),
        # All words in other places, and one that only the draft has.
        (
            {},
            {"words": ["<unk>", "<end>", "new", *WORDS[2:]]},
            (DIFFER.format("2: 'w0'", "'new'"),),
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


@pytest.mark.parametrize("own", [{}, {"chat_template": "{{ messages[-1].content }}"}])
def test_a_draft_of_plain_prompts_needs_no_chat_template(workshop, own):
    target = workshop.source("t", chat_template="{{ messages[0].content }}")
    draft = workshop.source("d", **own)
    assert check_pair(target, draft, chats=False) == ()
    assert check_pair(target, draft) != ()


@pytest.mark.parametrize(
    ("draft", "traffic", "share"),
    [
        ({"words": WORDS[:149]}, {200: 51, 5: 49}, "49%"),
        ({"rows": 100}, {200: 2, 5: 1}, "33%"),
        # Nine tokens of ten are not the draft's, whatever else it has.
        ({"words": WORDS[:299]}, {299: 9, 5: 1}, "10%"),
    ],
)
def test_a_draft_that_lacks_most_of_what_is_written_is_refused(workshop, draft, traffic, share):
    words = f"`d` cannot draft for `t`: it has only {share} of the traffic's tokens"
    with pytest.raises(PairError, match=words) as caught:
        check_pair(workshop.source("t"), workshop.source("d", **draft), traffic)
    assert caught.value.hint


def test_whether_a_draft_of_few_tokens_has_what_is_written_takes_traffic_to_tell(workshop):
    """Known fault: it was refused without traffic and could work with it."""
    target, draft = workshop.source("t"), workshop.source("d", WORDS[:149])
    assert check_pair(target, draft) == (
        "the draft lacks 151 of the target's tokens and never proposes them: `draftbench check "
        "--traffic` shows how much of your text it covers",
    )
    for traffic, enough in ((None, None), ({200: 1, 5: 1}, True), ({200: 2, 5: 1}, False)):
        assert covers(pair_facts(target, draft, traffic)) is enough
    assert covers(pair_facts(target, workshop.source("half", WORDS[:150]))) is True


@pytest.mark.parametrize(
    ("traffic", "bound"),
    [
        ({5: 7.0, 250: 3.0}, ": at most 70.0% of the traffic's tokens can be accepted"),
        ({5: 9999.0, 250: 1.0}, ": at most 99.9% of the traffic's tokens can be accepted"),
        ({5: 7.0}, ", none of which the traffic uses"),
    ],
)
def test_the_traffic_bounds_what_can_be_accepted(workshop, traffic, bound):
    target, draft = workshop.source("t"), workshop.source("d", WORDS[:100])
    assert check_pair(target, draft, traffic) == (LACKS.format(200) + bound,)


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


def test_the_embedded_drafts_have_half_of_the_targets_tokens_or_all(embedded):
    target, foreign, draft, distilled = (
        ModelSource(str(embedded / name)) for name in ("target", "foreign", "draft", "distilled")
    )
    assert check_pair(target, foreign) == (LACKS.format(1024),)
    assert check_pair(target, draft) == check_pair(target, distilled) == ()


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


def test_the_difference_of_endless_templates_ends(workshop, monkeypatch):
    """Its time grows with the square of the lines."""
    monkeypatch.setattr(compatibility, "MOST_LINES", 2)
    one, other = (workshop.source(f"m{n}", chat_template=f"a\nb\n{n}") for n in range(2))
    assert pair_facts(one, other).template_difference == ("(not compared after line 2)",)

"""The table of known pairings: what it must carry, and what names tell."""

import pytest

from draftbench.models.known_pairs import heads, heads_of, pairings_of, table


def test_every_row_names_its_source_and_a_draft_or_why_there_is_none():
    for row in table().pairings:
        assert row.source.startswith("https://")
        assert row.note if row.draft is None else row.draft.count("/") == 1


def test_every_head_is_named_by_hub_ids_and_its_source():
    _, known = heads()
    for row in known:
        assert (row.target.count("/"), row.head.count("/")) == (1, 1)
        assert row.source.startswith("https://")
    assert len({(row.target, row.head) for row in known}) == len(known)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", ["RedHatAI/Llama-3.1-8B", "z-lab/LLaMA3.1-8B"]),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic@v1", ["RedHatAI/Llama", "z-lab/LLaMA3.1"]),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-Q4_K_M", ["RedHatAI/Llama", "z-lab/LLaMA3.1"]),
        ("nvidia/Llama-3.1-8B-Instruct-FP4", ["RedHatAI/Llama", "z-lab/LLaMA3.1"]),
        ("mlx-community/Llama-3.1-8B-Instruct-MLX-4bit", ["RedHatAI/Llama", "z-lab/LLaMA3.1"]),
        ("openai/gpt-oss-120b", ["nvidia/gpt-oss-120b-Eagle3-v3", "z-lab/gpt-oss-120b-DFlash"]),
        ("google/gemma-4-31B-it", ["google/gemma-4-31B-it-assistant"]),
        # Heads of other weights: the base model's, and another size.
        ("meta-llama/Llama-3.1-8B", []),
        ("Qwen/Qwen3-8B-Base", []),
    ],
)
def test_a_head_is_found_for_the_weights_it_was_trained_for_however_they_are_stored(target, found):
    heads_found = [row.head for row in heads_of(target)]
    assert len(heads_found) == len(found)
    assert all(name.startswith(wanted) for name, wanted in zip(heads_found, found, strict=True))


@pytest.mark.parametrize(
    ("target", "drafts"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", ["Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B"]),
        ("/models/Meta-Llama-3-70B/", ["Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B"]),
        ("Qwen/Qwen2.5-72B-Instruct@main", ["Qwen2.5-1.5B", "Qwen2.5-0.5B"]),
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", ["Qwen2.5-0.5B", "Qwen2.5-1.5B"]),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", ["Qwen2.5-Coder-1.5B", "Qwen2.5-Coder-0.5B"]),
        (
            "Qwen/Qwen2.5-Coder-7B-Instruct",
            ["Coder-0.5B-Instruct", "Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-1.5B"],
        ),
        ("./Qwen2.5-Coder-1.5B-Instruct", ["Qwen2.5-Coder-0.5B-Instruct"]),
        ("mistralai/Mistral-Large-Instruct-2407", ["Mistral-7B-Instruct-v0.3"]),
        ("Qwen/Qwen3-32B", ["Qwen3-1.7B", "Qwen3-0.6B"]),
        ("deepseek-ai/DeepSeek-R1", ["DeepSeek-R1-DRAFT-0.5B"]),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", ["DeepSeek-R1-Distill-Qwen-1.5B"]),
        ("org/something-else-70b", []),
        # An 8B on Qwen's vocabulary, not the 671B that a draft was made for.
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", []),
        ("deepseek-ai/DeepSeek-R1-0528", ["DeepSeek-R1-DRAFT-0.5B"]),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", ["3.2-1B", "3.2-3B", "3.1-8B"]),
        ("meta-llama/Llama-3.1-405B-Instruct", ["3.2-1B", "3.2-3B", "3.1-8B"]),
        ("google/gemma-3-12b-it", ["gemma-3-270m-it"]),
        ("Qwen/Qwen3-14B", ["Qwen3-0.6B"]),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", ["Qwen3-0.6B"]),
        ("mistralai/Devstral-Small-2-24B-Instruct-2512", ["Mistral-Small-3.1-DRAFT-0.5B"]),
        # A target that is itself of a draft's size.
        ("google/gemma-4-E2B-it", []),
    ],
)
def test_a_target_is_found_by_its_name(target, drafts):
    found = [row.draft for row in pairings_of(target)]
    assert len(found) == len(drafts)
    for name, wanted in zip(found, drafts, strict=True):
        assert wanted in name


def test_a_draft_is_in_use_for_gemma_4_beside_the_heads_it_was_released_with():
    draft, heads = pairings_of("google/gemma-4-31B-it")
    assert (draft.draft, heads.draft) == ("google/gemma-4-E2B-it", None)
    assert "1.29 times" in (draft.note or "")


@pytest.mark.parametrize(
    "target",
    [
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "moonshotai/Kimi-K2.6",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    ],
)
def test_a_target_that_is_served_with_a_head_is_said_to_be(target):
    (row,) = pairings_of(target)
    assert row.draft is None
    assert "head" in (row.note or "")


def test_an_8b_target_is_usually_left_alone():
    first = pairings_of("meta-llama/Llama-3.1-8B-Instruct")[0]
    assert first.draft is None
    assert "usually none" in first.note


def test_sizes_are_counted_or_unknown():
    # Counted from config.json, but for two cards that say 0.6.
    known = {row.billions for row in table().pairings} - {None}
    assert known == {1.236, 3.213, 8.03, 0.494, 1.544, 7.248, 0.6}
    assert any(row.draft and row.billions is None for row in table().pairings)


@pytest.mark.parametrize(
    "name", ["jukofyork/DeepSeek-R1-DRAFT-0.5B-v1.0", "google/gemma-4-31B-it-assistant"]
)
def test_a_draft_is_offered_no_draft(name):
    assert pairings_of(name) == ()

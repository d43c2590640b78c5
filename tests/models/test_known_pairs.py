"""The table of known pairings: what it must carry, and what names tell."""

import pytest

from draftbench.models.known_pairs import heads_of, known_heads, known_pairings, pairings_of


def test_every_row_names_its_source_and_a_draft_or_why_there_is_none():
    for row in known_pairings():
        assert row.source.startswith("https://")
        assert row.note if row.draft is None else row.draft.count("/") == 1
    _, known = known_heads()
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
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", ["3.2-1B", "3.2-3B", "3.1-8B"]),
        ("Qwen/Qwen2.5-72B-Instruct@main", ["Qwen2.5-1.5B", "Qwen2.5-0.5B"]),
        ("Qwen/Qwen2.5-32B-Instruct-AWQ", ["Qwen2.5-0.5B", "Qwen2.5-1.5B"]),
        ("./Qwen2.5-Coder-1.5B-Instruct", ["Qwen2.5-Coder-0.5B-Instruct"]),
        ("Qwen/Qwen3-32B", ["Qwen3-1.7B", "Qwen3-0.6B"]),
        ("deepseek-ai/DeepSeek-R1-0528", ["DeepSeek-R1-DRAFT-0.5B"]),
        # An 8B on Qwen's vocabulary, not the 671B that a draft was made for.
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", []),
        ("org/something-else-70b", []),
        # A draft beside the heads that the target was released with, or heads alone.
        ("google/gemma-4-31B-it", ["gemma-4-E2B-it", None]),
        ("moonshotai/Kimi-K2.6", [None]),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", [None]),
        # A target of a draft's size, or one that is itself a draft.
        ("google/gemma-4-E2B-it", []),
        ("jukofyork/DeepSeek-R1-DRAFT-0.5B-v1.0", []),
        ("google/gemma-4-31B-it-assistant", []),
    ],
)
def test_a_target_is_found_by_its_name(target, drafts):
    found = [row.draft for row in pairings_of(target)]
    assert len(found) == len(drafts)
    for name, wanted in zip(found, drafts, strict=True):
        assert name is None if wanted is None else wanted in name

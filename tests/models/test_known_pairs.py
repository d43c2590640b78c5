"""The lists of known models: what they must carry, how old they may be, and what names tell."""

from datetime import date, timedelta

import pytest

from draftbench.drafts.mtp.families import CHECKED, FAMILIES
from draftbench.models.known_pairs import (
    LISTS,
    heads_of,
    known_heads,
    known_own_drafts,
    known_pairings,
    pairings_of,
)

OLDEST = timedelta(days=60)


def test_every_row_names_its_source_and_a_draft_or_why_there_is_none():
    _, pairings = known_pairings()
    for row in pairings:
        assert row.source.startswith("https://")
        assert row.note if row.draft is None else row.draft.count("/") == 1
    _, known = known_heads()
    for row in known:
        assert (row.target.count("/"), row.head.count("/")) == (1, 1)
        assert row.source.startswith("https://")
    assert len({(row.target, row.head) for row in known}) == len(known)
    _, carried = known_own_drafts()
    types = {kind for family in FAMILIES for kind in family.types.split()}
    for target in carried:
        assert target.target.count("/") == 1
        assert target.source.startswith("https://")
        assert target.type in types
        assert target.k > 0
    assert len({row.target.lower() for row in carried}) == len(carried)


def overdue(name, checked, today):
    """What to do about a list that nobody looked through for too long; None if it is new enough."""
    if today - checked <= OLDEST:
        return None
    return (
        f"{name} was last looked through on {checked}, {(today - checked).days} days ago, and "
        "lists what was published until then. This test fails with time, not by a change: look for "
        "what is new (recipes of vLLM and SGLang, model cards, the engines' sources), add rows "
        f"with source and date, and write the day into `checked` of {name}. If nobody can, say so "
        "in an issue rather than moving the date."
    )


@pytest.mark.parametrize("name", [*LISTS, "drafts/mtp/families.py"])
def test_a_list_of_known_models_was_looked_through_in_the_last_sixty_days(name):
    checked = LISTS[name]()[0] if name in LISTS else CHECKED
    todo = overdue(name, checked, date.today())
    assert todo is None, todo
    assert checked <= date.today() + timedelta(days=1), "no list is of the future"


def test_a_list_is_overdue_after_sixty_days_and_says_what_to_do():
    checked = date(2026, 11, 29)
    assert overdue("models/known_heads.yaml", checked, date(2027, 1, 28)) is None
    todo = overdue("models/known_heads.yaml", checked, date(2027, 1, 29))
    assert "61 days ago" in todo
    assert "write the day into `checked` of models/known_heads.yaml" in todo


def test_the_date_of_a_source_is_not_after_the_day_on_which_its_list_was_looked_through():
    for listed in LISTS.values():
        checked, rows = listed()
        assert all(row.date is None or row.date <= checked for row in rows)


OF_LLAMA = ["RedHatAI/Llama-3.1-8B", "z-lab/LLaMA3.1-8B", "yuhuili/EAGLE3-LLaMA3.1"]
OWN = "deepseek-ai/DeepSeek-V4-Flash"


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", OF_LLAMA),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic@v1", OF_LLAMA),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-Q4_K_M", OF_LLAMA),
        ("nvidia/Llama-3.1-8B-Instruct-FP4", OF_LLAMA),
        ("mlx-community/Llama-3.1-8B-Instruct-MLX-4bit", OF_LLAMA),
        ("openai/gpt-oss-120b", ["nvidia/", "z-lab/", "RedHatAI/"]),
        ("deepseek-ai/DeepSeek-V4-Flash", [f"{OWN}-DSpark", "RedHatAI/DeepSeek-V4-Flash-spec"]),
        # The same model as released: another drafter inside, and other weights.
        ("deepseek-ai/DeepSeek-V4-Flash-0731", ["AQ-MedAI/DeepSeek-V4-Flash-0731-eagle3"]),
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
    ("target", "heads"),
    [
        (
            "Qwen/Qwen3.8-27B",
            {
                "z-lab/Qwen3.8-27B-DFlash2": ("dflash", 7),
                "RadixArk/Qwen3.8-27B-DSpark": ("dspark", 7),
                "EAGLE-Corp/Qwen3.8-27B-EAGLE4": ("eagle4", None),
            },
        ),
        (
            "Qwen/Qwen3-8B",
            {
                "deepseek-ai/dspark_qwen3_8b_block7": ("dspark", 7),
                "deepseek-ai/dflash_qwen3_8b_block7": ("dflash", None),
                "deepseek-ai/eagle3_qwen3_8b_ttt7": ("eagle3", None),
                "RedHatAI/Qwen3-8B-speculator.dflash": ("dflash", 7),
                "AngelSlim/Qwen3-8B_eagle3": ("eagle3", 3),
                "JetSpec/jetspec-qwen3-8b": ("jetspec", None),
            },
        ),
        (
            "deepseek-ai/DeepSeek-V4-Flash",
            {
                "deepseek-ai/DeepSeek-V4-Flash-DSpark": ("dspark", 7),
                "RedHatAI/DeepSeek-V4-Flash-speculator.dflash": ("dflash", 7),
            },
        ),
        ("google/gemma-4-26B-A4B-it", {"makora-ai/gemma4-26b-a4b-dspark": ("dspark", 6)}),
        ("zai-org/GLM-5.3-Flash", {"incoai/GLM-5.3-Flash-DFlash2": ("dflash", 7)}),
        ("meta-models/Muse-Glimmer-30B", {"incoai/Muse-Glimmer-30B-DFlash2": ("dflash", None)}),
    ],
)
def test_heads_of_this_autumn_are_known_with_the_length_of_their_source(target, heads):
    found = {row.head: (row.method, row.k) for row in heads_of(target)}
    assert heads.items() <= found.items()


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

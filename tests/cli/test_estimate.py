"""`draftbench estimate`: both of its forms, and what goes wrong with them."""

import csv
import json
from pathlib import Path

import pytest

LLAMA = Path(__file__).parents[1] / "planner" / "configs"

SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
FORMULA = ["--alpha", "0.75", "--draft-cost", "0.05"]


@pytest.fixture
def models(tmp_path):
    """Flags of a target of 64 layers and a draft of 16, one as a file and one as a folder."""
    target = tmp_path / "target.json"
    target.write_text(json.dumps(SIZES | {"num_hidden_layers": 64}))
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text(json.dumps(SIZES))
    return ["--target", target, "--draft", tmp_path / "draft", "--hardware", "h100"]


def test_the_closed_form_as_a_table(command):
    outcome = command("estimate", *FORMULA, "--k", "7-10")
    assert (outcome.code, outcome.err) == (0, "")
    title, _, *lines = outcome.out.splitlines()
    assert title == "α = 0.75, c = 0.05, in closed form"
    assert "closed form, positions alike (Leviathan et al. 2023); not measured" in outcome.out
    # (1 - 0.75^8) / 0.25 = 3.60 tokens for 1.35 steps; with 1.05 it would be 3.43.
    assert lines[0].split() == ["→", "7", "3.60", "2.67", "0.26", "2.32", "3.43"]
    # (1 - x^8) / (1 - x) = 1.35 at x = 0.26.
    assert "Best k = 7: 2.67×; there it breaks even at α = 0.26." in outcome.out
    assert "promises 3.65× at k = 10" in outcome.out


def test_verify_ratio_and_overhead_reach_the_formula(command):
    words = ["--alpha", "0.5", "--draft-cost", "0.1", "--verify-ratio", "1.3", "--overhead", "0.25"]
    outcome = command("estimate", *words, "--k", "2", "--format", "json")
    found = json.loads(outcome.out)
    assert (found["verify_ratio"], found["overhead"]) == (1.3, 0.25)
    assert found["rows"][0]["speedup"] == pytest.approx(1)
    words[1] = "0.3"
    assert "do not speculate" in command("estimate", *words).out


@pytest.mark.parametrize("form", ["formula", "models"])
def test_every_format_says_that_nothing_was_measured(command, models, form):
    words = FORMULA if form == "formula" else models
    for style in ("table", "json", "markdown", "csv"):
        outcome = command("estimate", *words, "--format", style)
        assert (outcome.code, outcome.err) == (0, "")
        assert "not measured" in outcome.out
    assert len(list(csv.DictReader(outcome.out.splitlines()))) == (10 if form == "formula" else 9)


def test_the_roofline_of_two_configurations(command, models):
    outcome = command("estimate", *models, "--k", "1,4", "--context", "100", "--format", "json")
    found = json.loads(outcome.out)
    assert (found["batch"], found["context"]) == (1, 100)
    assert len(found["pairings"]) == 9
    first = found["pairings"][0]
    assert (first["target_bits"], first["draft_bits"]) == (16, 16)
    assert list(first["verify_ratio"]) == ["1", "4"]
    # Blocks of 64 layers against 16, and the same head of 262.7 million weights.
    layer = 2 * 2048 * 64 * 40 + 3 * 2048 * 8192 + 2 * 2048
    passes = [2 * (n * layer + 2048 + 128256 * 2048) + 100 * 4 * n * 8 * 64 for n in (16, 64)]
    assert first["draft_cost_ratio"] == pytest.approx(passes[0] / passes[1])


@pytest.mark.parametrize("card", ["h100", "h200"])
@pytest.mark.parametrize(
    ("draft", "gap"),
    [
        # 1.8 % and 10.9 % by bytes alone, on either card.
        ("llama-3.2-1b", "about 5% for Llama 70B with a 1B draft, 2.8 times the roofline's 1.8%"),
        ("llama-3.1-8b", "12% to 15% for Llama 70B with an 8B draft, 1.1 to 1.4 times the "
                         "roofline's 10.9%"),
    ],
)  # fmt: skip
def test_the_gap_to_practice_is_printed(command, card, draft, gap):
    models = ["--target", LLAMA / "llama-3.1-70b", "--draft", LLAMA / draft, "--hardware", card]
    found = command("estimate", *models, "--format", "markdown").out
    assert f"Practice reports a c of {gap}" in found
    assert "c, estimated" in found
    assert "v(11), estimated" in found


@pytest.mark.parametrize(
    ("card", "draft", "verdict"),
    [
        # 92 % are 73.6 and 129.7 GB; the target is 141, 72.7 and 40.6 GB, and its cache 0.67 GB.
        ("h100", "llama-3.2-1b", "does not fit this card at 16 bits; it fits at 8 and 4."),
        ("h200", "llama-3.1-8b", "does not fit this card at 16 bits; it fits at 8 and 4."),
        ("l4", "llama-3.2-1b", "at 16, 8 and 4 bits; no precision here makes it fit."),
    ],
)
def test_where_a_70b_does_not_fit_the_precision_is_named_at_which_it_does(
    command, card, draft, verdict
):
    models = ["--target", LLAMA / "llama-3.1-70b", "--draft", LLAMA / draft, "--hardware", card]
    assert verdict in command("estimate", *models, "--format", "markdown").out


@pytest.mark.parametrize(
    ("context", "verdict"),
    [
        # 8.3, 4.4 and 2.6 GB of weights on 24 GB, and 131 kB of cache a token, of six sequences.
        (19_000, "fits at 16, 8 and 4 bits."),
        (20_000, "does not fit this card at 16 bits; it fits at 8 and 4."),
        (26_000, "does not fit this card at 16 and 8 bits; it fits at 4."),
        (28_000, "does not fit this card at 16, 8 and 4 bits; no precision here makes it fit."),
    ],
)
def test_the_target_is_said_to_fit_at_the_precisions_that_do(command, models, context, verdict):
    models[-1] = "l4"
    words = ["--concurrency", "6", "--context", context, "--memory-share", "1"]
    outcome = command("estimate", *models, *words, "--format", "markdown")
    assert f"The target alone {verdict}" in outcome.out


def test_what_the_draft_takes_from_the_targets_cache_is_said(command):
    models = ["--target", LLAMA / "llama-3.1-70b", "--draft", LLAMA / "llama-3.2-1b"]
    words = ["--hardware", "h200", "--concurrency", "16", "--context", "8192", "--k", "4"]
    found = command("estimate", *models, *words, "--format", "markdown").out
    # 129.72 GB less 72.65, at 327,680 bytes a token and 513,024 of logits; then less 2.47, at
    # 360,448 and five times the logits.
    assert (
        "At 8 bits with a draft of 16, the draft takes 2.47 GB of weights and 32.8 kB a token: "
        "room for 18 sequences of 8192 tokens instead of 21; 16 at once may have a max-model-len "
        "of 9459 instead of 10882." in found
    )


def test_the_result_goes_to_a_file(command, tmp_path):
    outcome = command("estimate", *FORMULA, "-o", tmp_path / "table.txt")
    assert (outcome.code, outcome.out) == (0, "")
    assert "Best k" in (tmp_path / "table.txt").read_text()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--alpha", "0.7"],
        ["--target", "t", "--draft", "d"],
        [*FORMULA, "--hardware", "h100"],
        [*FORMULA, "--concurrency", "2"],
        [*FORMULA, "--memory-share", "0.9"],
        ["--target", "t", "--draft", "d", "--hardware", "h100", "--overhead", "0"],
    ],
)
def test_flags_that_do_not_go_together(failing, words):
    said = failing(2, "estimate", *words)
    assert "these flags do not go together" in said
    assert "--alpha 0.75" in said


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--alpha", "75", "--draft-cost", "0.1"], "not a probability"),
        (["--alpha", "nan", "--draft-cost", "0.1"], "not a probability"),
        (["--alpha", "0.7", "--draft-cost", "-1"], "draft cost ratio"),
        ([*FORMULA, "--verify-ratio", "0"], "verify ratio"),
        ([*FORMULA, "--overhead", "-1"], "overhead"),
        ([*FORMULA, "--k", "0-4"], "--k"),
        ([*FORMULA, "--format", "jsn"], "did you mean `json`?"),
        ([*FORMULA, "-o", "/no/such/folder/x"], "cannot write"),
    ],
)
def test_numbers_and_values_that_cannot_be(failing, words, meant):
    assert meant in failing(2, "estimate", *words)


@pytest.mark.parametrize(
    ("at", "value", "meant"),
    [
        (1, "/no/such/config.json", "cannot read"),
        (5, "h10", "did you mean `h100`?"),
    ],
)
def test_models_and_cards_that_are_not_there(failing, models, at, value, meant):
    models[at] = value
    assert meant in failing(2, "estimate", *models)


@pytest.mark.parametrize("share", ["0", "1.1", "nan"])
def test_a_share_of_memory_that_cannot_be_is_refused(failing, models, share):
    assert "no share of a card" in failing(2, "estimate", *models, "--memory-share", share)


def test_a_model_of_another_shape_is_refused_by_its_missing_key(failing, models, tmp_path):
    (tmp_path / "draft" / "config.json").write_text('{"n_embd": 768}')
    assert "has no `num_attention_heads`" in failing(2, "estimate", *models)

"""`draftbench suggest`: rows of the table, and what the models' own files add to them."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from scenes import stranger, with_fields

TARGET = "Llama-3.3-70B-Instruct"
ONE_B = "meta-llama/Llama-3.2-1B-Instruct"


@pytest.fixture
def models(embedded, tmp_path, monkeypatch):
    """A working directory with a target, one of its usual drafts and one that cannot draft for it,
    each under the name that the table has.
    """
    monkeypatch.chdir(tmp_path)
    for name, model in (
        (TARGET, "target"),
        (ONE_B, "draft"),
    ):
        shutil.copytree(embedded / model, tmp_path / name)
    stranger(tmp_path).rename(tmp_path / "meta-llama/Llama-3.2-3B-Instruct")
    return tmp_path


def joined(text):
    return " ".join(text.split())


def proposals(command, target):
    found = json.loads(command("suggest", "--target", target, "--format", "json").out)
    return found, {row["pairing"]["draft"]: row for row in found["proposals"]}


def test_drafts_are_held_against_the_models_own_files_if_they_can_be_read(command, models):
    found, rows = proposals(command, TARGET)
    one = rows[ONE_B]
    assert (one["obstacles"], one["same_tokens"], one["unchecked"]) == ([], 1.0, None)
    assert one["share"] == pytest.approx(one["parameters"] / found["parameters"])
    other = rows["meta-llama/Llama-3.2-3B-Instruct"]
    assert (one["works"], other["obstacles"], other["works"]) == ("yes", [], "maybe")
    outcome = command("suggest", "--target", TARGET)
    assert outcome.code == 0
    assert outcome.err == (
        "note: the hub cannot be reached: only models that are in the cache are checked\n"
    )
    rows = {line.split()[0]: line for line in outcome.out.splitlines() if line.startswith("meta-")}
    assert "8.03 B" in rows["meta-llama/Llama-3.1-8B-Instruct"]
    assert rows["meta-llama/Llama-3.1-8B-Instruct"].endswith("not checked")
    assert rows[ONE_B].endswith("can work")
    assert rows["meta-llama/Llama-3.2-3B-Instruct"].endswith("may work")
    said = "meta-llama/Llama-3.1-8B-Instruct not checked: not in the cache,"
    assert said in " ".join(outcome.out.split())


def test_a_target_that_is_not_here_still_gets_its_rows_with_their_sources(command):
    outcome = command("suggest", "--target", "Qwen/Qwen3-32B", "--format", "markdown")
    assert outcome.code == 0
    assert "Qwen/Qwen3-1.7B | unknown | not checked" in outcome.out
    source = "https://github.com/vllm-project/vllm/pull/24322, 2025-09-05"
    assert source in outcome.out.replace("\u200b", "")  # what breaks links of names
    assert outcome.out.count("not in the cache, and the hub cannot be reached") == 1


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_asked_once_and_its_answer_is_not_printed(models):
    """A port of this machine at which nobody listens."""
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    words = ["suggest", "--target", TARGET]
    done = subprocess.run(
        [sys.executable, "-m", "draftbench", *words],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.startswith("note: the hub cannot be reached")
    assert done.stderr.count("\n") == 1
    assert "8.03 B" in done.stdout


@pytest.mark.parametrize(
    ("target", "code", "said", "unsaid"),
    [
        ("openai/gpt-oss-120b", 0, "no draft: served with a trained head", "Known to be used"),
        ("org/unheard-of-70b", 1, "No known draft for org/unheard-of-70b\n", "same"),
    ],
)
def test_a_target_that_is_left_alone_or_unknown_gets_no_guess(command, target, code, said, unsaid):
    outcome = command("suggest", "--target", target)
    assert (outcome.code, outcome.err) == (code, "")
    assert said in outcome.out
    assert unsaid not in outcome.out


def test_heads_come_before_draft_models_and_those_that_run_here_first(command):
    outcome = command("suggest", "--target", "meta-llama/Llama-3.1-8B-Instruct")
    eagle, dflash, drafts = (
        outcome.out.index(words)
        for words in (
            "eagle3:RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3  draftbench*, or an engine",
            "dflash:z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
            "Drafts used with",
        )
    )
    assert eagle < dflash < drafts
    assert "as of 2026-" in outcome.out
    # `--drafts` has no name for them; an engine has, or none that it measures on.
    other = joined(command("suggest", "--target", "Qwen/Qwen3.8-27B").out)
    assert "EAGLE-Corp/Qwen3.8-27B-EAGLE4 eagle-harness, its own engine" in other
    other = command("suggest", "--target", "google/gemma-4-E2B-it").out
    assert "gemma-4-E2B-it-assistant  an engine, as assistant (spec:FILE.json)" in other
    other = command("suggest", "--target", "zai-org/GLM-5.2").out
    assert "dspark:RedHatAI/GLM-5.2-speculator.dspark  draftbench*, or " in other
    assert "No known draft model for" in other


def test_a_target_that_carries_its_own_draft_says_so_first_with_each_engines_flag(
    command, embedded, tmp_path, monkeypatch
):
    known = command("suggest", "--target", "deepseek-ai/DeepSeek-V3.2").out
    assert known.startswith("deepseek-ai/DeepSeek-V3.2 carries its own draft\n")
    assert """vLLM: --speculative-config '{"method":"mtp","num_speculative_tokens":3}'""" in known
    assert "SGLang: --speculative-algorithm NEXTN" in known
    # Known fault: `num_nextn_predict_layers`, which TensorRT-LLM warns of and will remove.
    assert "TensorRT-LLM: speculative_config: {decoding_type: MTP, max_draft_len: 3}" in known
    assert "draft 3 tokens a round (https://github.com/vllm-project/recipes/" in joined(known)
    # Known fault: transformers has no such layers for it, and its option was offered.
    assert "use_mtp" not in known
    assert "Unused by transformers in such a model." in joined(known)
    # A folder is believed by its configuration, not by its name.
    monkeypatch.chdir(tmp_path)
    for name, field in (("plain", {}), ("heads", {"num_nextn_predict_layers": 1})):
        folder = shutil.copytree(embedded / "target", tmp_path / name / "DeepSeek-V3.2")
        with_fields(folder / "config.json", **field)
        outcome = command("suggest", "--target", folder, "--format", "json")
        found = json.loads(outcome.out)
        own = found["own_draft"]
        # Nothing else is known for it: no drafts, no heads.
        assert (found["proposals"], found["heads"]) == ([], [])
        assert outcome.code == (0 if own else 1)
        assert (own and (own["field"], own["layers"])) == (
            ("num_nextn_predict_layers", 1) if field else None
        )
    outcome = command("check", "--target", folder, "--drafts", embedded / "draft")
    assert outcome.out.startswith("DeepSeek-V3.2 carries its own draft\n")
    assert "llama.cpp: --spec-type draft-mtp" in outcome.out
    unused = "Unused by vLLM, SGLang, transformers in such a model."
    assert unused in " ".join(outcome.out.split())


@pytest.mark.parametrize(
    ("target", "k"),
    [("deepseek-ai/DeepSeek-V4-Flash-0731", 7), ("deepseek-ai/DeepSeek-V4.1-Flash", 5)],
)
def test_a_target_that_carries_a_dspark_drafter_is_offered_that_and_no_mtp_head(command, target, k):
    """Known fault: an MTP head that the checkpoint does not carry was offered."""
    outcome = command("suggest", "--target", target)
    assert outcome.code == 0
    first, _ = outcome.out.split("\n", 1)
    assert first.endswith(f"{target[-8:]} carries its own draft")
    vllm = f"""vLLM: --speculative-config '{{"method":"dspark","num_speculative_tokens":{k}}}'"""
    assert vllm in outcome.out
    assert f"--speculative-algorithm DSPARK --speculative-dspark-block-size {k}" in outcome.out
    for other in ('"mtp"', "NEXTN", "draft-mtp", "decoding_type: MTP", "--drafts mtp"):
        assert other not in outcome.out
    said = joined(outcome.out)
    assert "no MTP layers come with it" in said
    assert f"draft {k} tokens a round (https://github.com/vllm-project/recipes/" in said


def test_what_a_name_does_not_tell_is_unknown_until_the_folder_is_given(
    command, embedded, tmp_path
):
    unknown = "Its config.json says whether it carries a draft of its own: give its folder."
    # Known drafts or none, a name that is much like a known one, and one that carries none.
    for target in ("someone/DeepSeek-V4-Flash-0731-FP8", "deepseek-ai/DeepSeek-R1", "a/unheard"):
        outcome = command("suggest", "--target", target)
        assert unknown in joined(outcome.out)
        assert "carries its own draft" not in outcome.out
    folder = shutil.copytree(embedded / "target", tmp_path / "DeepSeek-V4-Flash")
    assert unknown not in joined(command("suggest", "--target", folder).out)
    with_fields(folder / "config.json", num_nextn_predict_layers=3, dspark_block_size=5)
    outcome = command("suggest", "--target", folder, "--format", "json")
    own = json.loads(outcome.out)["own_draft"]
    assert (own["method"], own["k"], own["source"]) == ("dspark", 5, None)


def test_mtp_is_refused_of_a_folder_that_carries_a_dspark_drafter(command, embedded, tmp_path):
    """Known fault: `check` called its stages an MTP head, which no engine finds in them."""
    folder = shutil.copytree(embedded / "target", tmp_path / "V4")
    with_fields(folder / "config.json", num_nextn_predict_layers=3, dspark_block_size=5)
    outcome = command("check", "--target", folder, "--drafts", "mtp")
    assert outcome.code == 1
    said = joined(outcome.out)
    assert "`V4` carries a DSpark drafter (dspark_block_size is 5 in its configuration)" in said
    assert '--drafts spec:FILE.json --engine vllm`, the file holding {"method": "dspark"' in said


@pytest.mark.parametrize("name", ["Qwen2.5-72B-Instruct", "unheard-of-70b", "a/b/Qwen3-32B"])
def test_a_path_without_a_model_is_refused_whatever_its_name(failing, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert f"error: no model found in `./{name}`" in failing(2, "suggest", "--target", f"./{name}")
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "README.md").touch()
    said = failing(2, "suggest", "--target", folder)
    assert said == (
        f"error: no model found in `{folder}`\n"
        "hint: give a folder with config.json, a .gguf file, or a hub id like org/name"
    )
    assert "no model found" in failing(2, "suggest", "--target", folder / "README.md")

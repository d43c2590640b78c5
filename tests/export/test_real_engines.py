"""What is exported, read by the engines themselves: by vLLM's SpeculativeConfig, and by the command
lines of llama-server and SGLang.

Runs only where an engine is named; last run with vLLM 0.32.0 on a CPU, llama-server b11669 and
SGLang 0.5.23.

    DRAFTBENCH_LLAMA_SERVER=llama/llama-server DRAFTBENCH_SGLANG_PYTHON=sglang/bin/python \\
        DRAFTBENCH_VLLM_PYTHON=vllm/bin/python VLLM_CPU_KVCACHE_SPACE=1 pytest tests/export
"""

import json
import os
import shlex
import shutil
import subprocess

import pytest
from scenes import EMBEDDED

from draftbench.drafts.speculation import speculation_of
from draftbench.engines.every import ENGINES
from draftbench.export.configurations import configure
from draftbench.records import DraftingMode

VLLM = os.environ.get("DRAFTBENCH_VLLM_PYTHON")
LLAMA = os.environ.get("DRAFTBENCH_LLAMA_SERVER")
SGLANG = os.environ.get("DRAFTBENCH_SGLANG_PYTHON")
PARSE = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = vars(parser.parse_args(sys.argv[1:]))
print(found["speculative_num_draft_tokens"])
"""
LENGTHS = """
import sys
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
read, sizes = AdaptiveSpeculativeParams(int(sys.argv[1]), sys.argv[2]), (1, 7, 8, 31, 32, 40)
for accepted in [None, *[0, 6] * 50]:  # however much was accepted
    if accepted is not None:
        [read.on_verify_complete([accepted] * size, size) for size in sizes]
    print([read.get_steps_for_batch(size) for size in sizes])
"""
OWN = speculation_of("mtp", 1)
SETTINGS = [
    {},
    {"mode": DraftingMode.SAMPLED, "sampled": True},
    {"draft": None, "concurrency": 64},
    {"quant": "fp8", "concurrency": 64},
    {"draft": "org/d@b", "target_revision": "a", "survival": (0.8, 0.5, 0.25, 0.05)},
]
SCHEDULE = ((1, 7, 6), (8, 31, 3), (32, 32, 0))
VALIDATE = """
import json, sys
from vllm.config import ModelConfig, ParallelConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup as lookup

def read(target, fields):
    models = {"target_model_config": ModelConfig(model=target)}
    models["target_parallel_config"] = ParallelConfig()
    try:
        found = SpeculativeConfig(**fields, **models)
    except Exception as error:
        return type(error).__name__
    most, steps = found.num_speculative_tokens, found.num_speculative_tokens_per_batch_size
    return lookup(steps, 40, most) if steps else most

print(json.dumps([read(*each) for each in json.load(sys.stdin)]))
"""
only_vllm = pytest.mark.skipif(VLLM is None, reason="DRAFTBENCH_VLLM_PYTHON names no vLLM")


def ran(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server")
@pytest.mark.parametrize("changes", SETTINGS)
def test_llama_server_reads_its_flags_as_far_as_the_missing_model(plan, changes):
    words = shlex.split(configure(plan(**changes), "llamacpp").text, comments=True)
    assert "failed to open GGUF file" in ran(LLAMA, *words[1:]).stderr
    assert "invalid argument" in ran(LLAMA, *words[1:], "--no-such-flag").stderr


@pytest.mark.skipif(SGLANG is None, reason="DRAFTBENCH_SGLANG_PYTHON names no SGLang")
@pytest.mark.parametrize("changes", SETTINGS)
def test_sglang_reads_its_flags(plan, changes):
    words = shlex.split(configure(plan(**changes), "sglang").text, comments=True)
    flags = words[words.index("sglang.launch_server") + 1 :]
    assert ran(SGLANG, "-c", PARSE, *flags).stdout.splitlines()[-1] == "5"
    assert ran(SGLANG, "-c", PARSE, *flags, "--no-such-flag").returncode == 2


@pytest.mark.skipif(SGLANG is None, reason="DRAFTBENCH_SGLANG_PYTHON names no SGLang")
def test_sglang_drafts_the_length_of_every_batch_that_the_exported_file_says(plan, tmp_path):
    head = plan("eagle3:org/e", vocabularies=None, schedule=SCHEDULE)
    found, file = configure(head, "sglang"), tmp_path / "lengths.json"
    file.write_text(found.text)
    command = shlex.split(found.command.replace("FILE", str(file)))
    assert ran(SGLANG, "-c", PARSE, *command[3:]).stdout.splitlines()[-1] == "7"
    lengths = set(ran(SGLANG, "-c", LENGTHS, "6", str(file)).stdout.splitlines())
    assert lengths == {"[6, 6, 3, 3, 0, 0]"}


@pytest.mark.skipif(LLAMA is None, reason="DRAFTBENCH_LLAMA_SERVER names no llama-server")
def test_llama_server_reads_the_option_for_a_targets_own_draft():
    words = ["-m", "missing.gguf", *shlex.split(ENGINES["llama.cpp"].option(OWN))]
    assert "failed to open GGUF file" in ran(LLAMA, *words).stderr


@pytest.mark.skipif(SGLANG is None, reason="DRAFTBENCH_SGLANG_PYTHON names no SGLang")
def test_sglang_reads_the_option_for_a_targets_own_draft():
    words = ["--model-path", "missing", *shlex.split(ENGINES["sglang"].option(OWN))]
    assert ran(SGLANG, "-c", PARSE, *words).stdout.splitlines()[-1] == "2"


def read_by_vllm(pairs):
    """For each target and configuration the draft lengths that vLLM takes, or its error."""
    assert VLLM is not None
    quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    ran = subprocess.run(
        [VLLM, "-c", VALIDATE],
        input=json.dumps(pairs),
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


@only_vllm
def test_vllm_accepts_what_is_exported_and_refuses_a_key_that_it_lacks(plan):
    pair = {"target": str(EMBEDDED / "target"), "draft": str(EMBEDDED / "draft")}
    rates = (0.8, 0.5, 0.25, 0.05)
    settings = [
        plan(**pair),
        plan(**pair, schedule=SCHEDULE),
        plan(**pair, quant="fp8", sampled=True),
        plan(**pair, mode=DraftingMode.SAMPLED_TEMPERATURE_ONLY, sampled=True),
        plan(**pair, vocabularies=(152064, 151936)),
        plan(draft=None),
        plan(draft=None, schedule=SCHEDULE),
        plan(**pair, survival=rates),
        plan(**pair, survival=(*rates, 0.04, 0.03), schedule=SCHEDULE),
    ]
    exported = [json.loads(configure(one, "vllm").text) for one in settings]
    # A folder has no revision.
    exported.append(exported[0] | {"revision": "main"})
    wrong = exported[0] | {"speculative_model": "d"}
    found = read_by_vllm([(pair["target"], fields) for fields in (*exported, wrong)])
    by_batch_size = [0, *[6] * 7, *[3] * 24, *[0] * 9]
    assert found[:-1] == [4, by_batch_size, 4, 4, 4, 4, by_batch_size, 4, by_batch_size, 4]
    assert found[-1] != 4


@only_vllm
def test_vllm_takes_the_option_for_a_targets_own_draft_where_its_type_has_one(tmp_path):
    _, fields = shlex.split(ENGINES["vllm"].option(speculation_of("mtp", 1)))
    heads = shutil.copytree(EMBEDDED / "target", tmp_path / "heads")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
    kind = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 2048}
    (heads / "config.json").write_text(json.dumps(sizes | kind | {"num_nextn_predict_layers": 1}))
    targets = str(heads), str(EMBEDDED / "target")
    taken, refused = read_by_vllm([(target, json.loads(fields)) for target in targets])
    assert (taken, refused) == (1, "NotImplementedError")

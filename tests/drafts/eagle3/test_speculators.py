"""What heads draft, against speculators' own forward pass.

Runs only where DRAFTBENCH_SPECULATORS_PYTHON names the interpreter of an environment with it; last
run with speculators 0.9.0, transformers 5.19.0 and torch 2.13.0 on a CPU. Elsewhere the plain
formulas of `random_heads` stand in.

    DRAFTBENCH_SPECULATORS_PYTHON=spec/bin/python pytest tests/drafts
"""

import json
import os
import subprocess

import pytest
import random_heads
import torch

from draftbench.drafts.eagle3.draft import build_head
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource

PYTHON = os.environ.get("DRAFTBENCH_SPECULATORS_PYTHON")
WORDS, DRAFTED, ROWS, DEPTHS = 300, 200, 60, 6
# What every row of a text drafts at each depth, as ids of the head.
DRAFT = """
import json, sys
import torch
from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3DraftModel

folder, depths = sys.argv[1], int(sys.argv[2])
asked = load_file(folder + "/asked.safetensors")
config = Eagle3DraftModel.config_class.from_pretrained(folder)
config.transformer_layer_config._attn_implementation = "eager"
model = Eagle3DraftModel(config)
weights = load_file(folder + "/model.safetensors")
missing, unknown = model.load_state_dict(weights, strict=False)
found = model.float().eval()(
    hidden_states=asked["states"][None],
    input_ids=asked["tokens"][None],
    document_ids=torch.zeros(1, len(asked["tokens"]), dtype=torch.long),
    ttt_steps=depths,
)
drafted = [ids[0].tolist() for ids in found[:depths]]
left_out = [name for name in missing if not name.startswith("verifier")]
print(json.dumps({"drafted": drafted, "missing": left_out, "unknown": unknown}))
"""

pytestmark = pytest.mark.skipif(
    PYTHON is None, reason="DRAFTBENCH_SPECULATORS_PYTHON names no speculators"
)


@pytest.mark.parametrize("variant", random_heads.VARIANTS)
def test_every_row_drafts_what_speculators_drafts_at_every_depth(tmp_path, variant):
    assert PYTHON is not None
    random_heads.target(WORDS).save_pretrained(tmp_path / "target")
    config = random_heads.config(WORDS, DRAFTED, **random_heads.VARIANTS[variant])
    verifier = {"name_or_path": str(tmp_path / "target"), "architectures": ["LlamaForCausalLM"]}
    method = {"proposal_type": "greedy", "speculative_tokens": DEPTHS}
    config["speculators_config"] = {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": verifier,
    }
    weights = random_heads.tensors(config)
    folder = random_heads.save(tmp_path / "head", config, weights)
    generator = torch.Generator().manual_seed(5)
    text = torch.randint(WORDS, (ROWS + 1,), generator=generator)
    states = torch.randn(ROWS, 3 * random_heads.HIDDEN, generator=generator)
    random_heads.save_file(
        {"tokens": text[1:].contiguous(), "states": states}, folder / "asked.safetensors"
    )
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = [PYTHON, "-c", DRAFT, str(folder), str(DEPTHS)]
    ran = subprocess.run(words, env=os.environ | quiet, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    (folder / "asked.safetensors").unlink()
    build = Build(torch.float32, "none", "cpu")
    target, _ = build_runner(ModelSource(str(tmp_path / "target")), build, None)
    head, _ = build_head(
        ModelSource(str(folder)), build, "eagle3:head", target, random_heads.LAYERS
    )
    differ = compared = 0
    for row in range(ROWS - 1):
        # As they do, later depths read the text, as far as it goes.
        read, left = text[1 : row + 2], head.entering(states[: row + 1])
        cache = head.new_cache(ROWS + DEPTHS)
        for depth in range(min(DEPTHS, ROWS - 1 - row)):
            logits, left = head.step(read, left, cache, [len(read)])
            differ += int(head.chosen(logits) != head.target_ids[said["drafted"][depth][row]])
            compared, read = compared + 1, text[row + 2 + depth : row + 3 + depth]
    assert (differ, compared) == (0, 339)
    assert said["missing"] == []

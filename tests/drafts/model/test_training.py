"""What a draft model learns."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
import scenes
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftbench.drafts.model.training import ModelInTraining
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.source import ModelSource
from draftbench.records import Request, Sampling
from draftbench.training.trainable import IGNORED, side_by_side


def response(prompt, tokens, temperature=0.0):
    lengths = {"prompt_tokens": len(prompt), "sampling": Sampling(temperature=temperature)}
    along = scenes.trajectory("r", len(tokens), **lengths)
    return ScoredResponse(Prompt(Request(id="r", source=""), prompt, 9), tokens, along)


def test_the_prompt_the_first_token_of_a_response_and_padding_are_not_learned():
    batch = side_by_side([response((5, 6), (7, 8, 9)), response((4,), (3, 2), 0.5)], 100)
    assert batch["ids"].tolist() == [[5, 6, 7, 8, 9], [4, 3, 2, 0, 0]]
    assert batch["attended"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    no = IGNORED
    assert batch["learned"].tolist() == [[no, no, no, 8, 9], [no, no, 2, no, no]]
    assert batch["temperature"].tolist() == [0.0, 0.5]


def test_a_response_is_cut_at_the_context_of_the_draft():
    batch = side_by_side([response((5, 6), (7, 8, 9, 1))], 4)
    assert batch["ids"].tolist() == [[5, 6, 7, 8]]
    assert batch["learned"].tolist() == [[IGNORED] * 3 + [8]]


class Fixed:
    """A model with the same logits at every token."""

    def __init__(self, *logits):
        self.logits = torch.tensor(logits)

    def __call__(self, input_ids, **_):
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def loss(draft, tokens, temperature=0.0, teacher=None):
    """Of a response of these tokens after a prompt of one."""
    made = ModelInTraining.__new__(ModelInTraining)
    made.module, made.teacher = draft, teacher
    ids = torch.tensor([[0, *tokens]])
    learned = torch.tensor([[IGNORED, IGNORED, *tokens[1:]]])
    heat = torch.tensor([temperature])
    batch = {"ids": ids, "attended": ids >= 0, "learned": learned, "temperature": heat}
    return float(made.loss(batch))


# Probabilities 1/4, 1/4, 1/2.
QUARTERS = Fixed(0.0, 0.0, math.log(2))


TEACHER = math.log(3), 0.0, -100.0  # 3/4, 1/4, 0
HEATED = Fixed(0.5 * math.log(3), 0.0, -100.0)  # the same at 1/2
ENTROPY = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))


@pytest.mark.parametrize(
    ("draft", "tokens", "temperature", "teacher", "nats"),
    [
        # Of a greedy target its tokens: 2 and 1 after the first, which is not learned.
        (QUARTERS, [0, 2, 1], 0.0, None, (math.log(2) + math.log(4)) / 2),
        (QUARTERS, [0, 2, 1], 0.0, Fixed(9.0, 0.0, 0.0), (math.log(2) + math.log(4)) / 2),
        # Of one that samples its distribution, at the temperature of the response.
        (QUARTERS, [0, 2], 1.0, Fixed(*TEACHER), math.log(4)),
        (Fixed(*TEACHER), [0, 2], 0.5, HEATED, ENTROPY),
        # Whatever either model's rows are padded with.
        (QUARTERS, [0, 2], 1.0, Fixed(*TEACHER[:2]), math.log(4)),
        (QUARTERS, [0, 2], 1.0, Fixed(*TEACHER, -100.0), math.log(4)),
    ],
)
def test_the_loss_by_hand(draft, tokens, temperature, teacher, nats):
    assert loss(draft, tokens, temperature, teacher) == pytest.approx(nats)


def stored(folder):
    """The tensors of a checkpoint by name, with their dtypes."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("changes", [{"tie_word_embeddings": True, "dtype": "bfloat16"}, {}])
def test_it_is_saved_in_its_dtype_with_tied_embeddings_once(changes, embedded, tmp_path):
    """Where the configuration names no dtype, it is that of the tensors."""
    folder = shutil.copytree(embedded / "draft", tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    config = {name: v for name, v in config.items() if name not in ("dtype", "torch_dtype")}
    (folder / "config.json").write_text(json.dumps(config | changes))
    tensors = load_file(folder / "model.safetensors")
    if changes:
        tensors.pop("lm_head.weight", None)
    narrow = {name: weight.bfloat16() for name, weight in tensors.items()}
    save_file(narrow, folder / "model.safetensors", {"format": "pt"})
    ModelInTraining(ModelSource(str(folder)), "cpu", None).save(tmp_path / "saved")
    assert stored(tmp_path / "saved") == stored(folder)


def test_what_adapters_add_is_in_the_weights_that_are_saved(embedded, tmp_path):
    pytest.importorskip("peft")
    source = ModelSource(str(embedded / "draft"))
    draft, again = (ModelInTraining(source, "cpu", None, rank=2) for _ in range(2))
    grown = {name: p for name, p in draft.module.named_parameters() if p.requires_grad}
    assert all(torch.equal(p, again.module.get_parameter(name)) for name, p in grown.items())
    assert {name.split(".")[-3] for name in grown} == {"lora_A", "lora_B"}
    with torch.no_grad():
        for p in grown.values():
            p.normal_(0, 0.1)
    draft.save(tmp_path / "saved")
    assert stored(tmp_path / "saved") == stored(embedded / "draft")
    ids = torch.arange(3, 20)[None]
    saved = ModelSource(str(tmp_path / "saved")).load(torch.float32, "cpu")
    with torch.no_grad():
        kept, trained, before = (
            model(ids).logits for model in (saved, draft.module, source.load(torch.float32, "cpu"))
        )
    # Rounding to 16 bits apart.
    assert (kept - trained).norm() < 0.02 * (before - trained).norm()

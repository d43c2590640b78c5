"""What a draft model learns."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftbench.models.source import ModelSource
from draftbench.training.draft_model import IGNORED, ModelInTraining


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


def test_of_a_greedy_target_its_tokens_are_learned():
    # Tokens 2 and 1 after the first, which is not learned.
    assert loss(QUARTERS, [0, 2, 1]) == pytest.approx((math.log(2) + math.log(4)) / 2)


def test_of_a_target_that_samples_its_distribution_is_learned():
    teacher = Fixed(math.log(3), 0.0, -100.0)  # 3/4, 1/4, 0
    assert loss(QUARTERS, [0, 2], 1.0, teacher) == pytest.approx(math.log(4))


def test_the_distribution_is_that_at_the_temperature_of_the_response():
    teacher = Fixed(0.5 * math.log(3), 0.0, -100.0)  # at 1/2 it is 3/4, 1/4, 0
    draft = Fixed(math.log(3), 0.0, -100.0)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert loss(draft, [0, 2], 0.5, teacher) == pytest.approx(entropy)


def test_of_greedy_responses_among_sampled_ones_the_tokens_are_learned():
    assert loss(QUARTERS, [0, 2, 1], 0.0, Fixed(9.0, 0.0, 0.0)) == pytest.approx(
        (math.log(2) + math.log(4)) / 2
    )


def test_a_teacher_with_more_or_fewer_rows_of_padding_teaches_the_same():
    for teacher in (Fixed(math.log(3), 0.0), Fixed(math.log(3), 0.0, -100.0, -100.0)):
        assert loss(QUARTERS, [0, 2], 1.0, teacher) == pytest.approx(math.log(4))


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


def stored(folder):
    """The tensors of a checkpoint by name, with their dtypes."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118


@pytest.fixture
def original(tmp_path, embedded):
    """A draft to change: its folder, and how to change its configuration."""
    shutil.copytree(embedded / "draft", tmp_path / "draft")
    path = tmp_path / "draft" / "config.json"

    def configure(**changes):
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: v for name, v in config.items() if v is not None}))

    return tmp_path / "draft", configure


def saved(folder):
    ModelInTraining(ModelSource(str(folder)), "cpu", None).save(folder.parent / "saved")
    return stored(folder.parent / "saved")


def test_tied_embeddings_are_written_once(original):
    folder, configure = original
    configure(tie_word_embeddings=True, dtype="bfloat16", torch_dtype=None)
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)
    narrow = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(narrow, folder / "model.safetensors", {"format": "pt"})
    assert saved(folder) == stored(folder)


def test_where_the_configuration_names_no_dtype_it_is_that_of_the_tensors(original):
    folder, configure = original
    configure(dtype=None, torch_dtype=None)
    weights = load_file(folder / "model.safetensors")
    narrow = {name: weight.bfloat16() for name, weight in weights.items()}
    save_file(narrow, folder / "model.safetensors", {"format": "pt"})
    assert set(saved(folder).values()) == {torch.bfloat16}

"""The embedded family's shapes, training text, tokenizers and checkpoints.

Turns the ``*.py`` files of the running interpreter into token streams, and a checkpoint of
``train_embedded.py`` into a model. Knows nothing of how models are trained.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

END = "<|endoftext|>"
CONTEXT = 512
WINDOW = 256  # tokens of a training window; the last sixth of a run uses CONTEXT
BATCH = 24 * WINDOW  # tokens of an optimizer step
HELD_OUT_PERCENT = 3
# Tables, not prose; and tests, which some distributions package apart.
SKIPPED = {"site-packages", "dist-packages", "encodings", "pydoc_data", "test", "tests"}
PROMPT_TOKENS = 64  # what the target is given when it writes


@dataclass(frozen=True)
class Spec:
    """Shape of one model and its share of the training time."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    share: float
    vocab: int = 2048
    distilled: bool = False

    def build(self) -> LlamaForCausalLM:
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=self.vocab,
                hidden_size=self.hidden,
                intermediate_size=self.mlp,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.kv_heads,
                max_position_embeddings=CONTEXT,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=0,
                pad_token_id=None,
            )
        )


SPECS = {
    "target": Spec(8, 256, 704, 4, 2, share=0.38),
    "draft": Spec(2, 128, 352, 4, 2, share=0.10),
    "foreign": Spec(2, 128, 352, 4, 2, share=0.03, vocab=1024),
    "distilled": Spec(1, 256, 1024, 4, 2, share=0.33, distilled=True),
}


def source_files() -> tuple[list[str], list[str]]:
    """Texts of the standard library's files: (train, held out), split by hash of the path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    train: list[str] = []
    held: list[str] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED & set(relative.parts):
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:  # a few files of the library test other encodings
            continue
        digest = hashlib.sha256(relative.as_posix().encode()).digest()
        bucket = int.from_bytes(digest[:4], "big") % 100
        (held if bucket < HELD_OUT_PERCENT else train).append(text)
    return train, held


def prepare_corpus(work: Path) -> None:
    """Writes tokenizer-V.json, train-V.npy and held-V.npy for both vocabularies."""
    train, held = source_files()
    for vocab in sorted({spec.vocab for spec in SPECS.values()}):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(train, trainer)
        tokenizer.save(str(work / f"tokenizer-{vocab}.json"))
        for name, texts in (("train", train), ("held", held)):
            ids = [i for code in tokenizer.encode_batch(texts) for i in (*code.ids, 0)]
            np.save(work / f"{name}-{vocab}.npy", np.array(ids, dtype=np.uint16))
            print(f"{name} {vocab}: {len(texts)} files, {len(ids)} tokens")


def load(work: Path, name: str) -> LlamaForCausalLM:
    """The checkpointed model, frozen."""
    model = SPECS[name].build().eval().requires_grad_(False)
    model.load_state_dict(torch.load(work / f"{name}.pt")["model"])
    return model


def greedy(model: LlamaForCausalLM, prompts: np.ndarray, new: int) -> np.ndarray:
    """Prompts [n, m] with `new` greedy tokens each, written on over ends of files: [n, m + new]."""
    ids = torch.from_numpy(prompts.astype(np.int64))
    model.generation_config.eos_token_id = None
    full = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
    )
    return np.asarray(full)

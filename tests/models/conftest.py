"""Model directories made on the spot: a word-level tokenizer, a Llama configuration, and random
weights where a test needs some.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from draftbench.models.source import ModelSource

WORDS = ("<unk>", "<end>", *(f"w{i}" for i in range(298)))
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}


class Workshop:
    """Makes model directories below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def tokenizer(
        self, name: str, words: Sequence[str] = WORDS, spaces: Any = None, **special: Any
    ) -> Path:
        """A directory with a tokenizer of these words; ids are their places. Its `spaces` are
        written in its own way, and then no token of it is special.
        """
        path = self.folder / name
        unknown = "?" if spaces else "<unk>"
        plain = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=unknown))
        plain.pre_tokenizer = spaces or Whitespace()
        options = {} if spaces else {"unk_token": unknown, "eos_token": "<end>"}
        fast = PreTrainedTokenizerFast(tokenizer_object=plain, **{**options, **special})
        fast.save_pretrained(path)
        return path

    def source(
        self, name: str, words: Sequence[str] = WORDS, rows: int | None = None, **special: Any
    ) -> ModelSource:
        """A model without weights: all that a pair check may read."""
        options = {key: special.pop(key) for key in SIZES if key in special}
        path = self.tokenizer(name, words, **special)
        vocabulary = len(words) if rows is None else rows
        LlamaConfig(**{**SIZES, **options}, vocab_size=vocabulary).save_pretrained(path)
        return ModelSource(str(path))

    def weighted(
        self,
        name: str,
        *,
        kind: str = "llama",
        stored: torch.dtype = torch.bfloat16,
        **changes: Any,
    ) -> ModelSource:
        """A model with random weights."""
        path = self.tokenizer(name)
        config = AutoConfig.for_model(kind, **{**SIZES, "vocab_size": len(WORDS), **changes})
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).to(stored).save_pretrained(path)
        return ModelSource(str(path))


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path)

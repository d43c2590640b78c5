"""A model's name on the command line → its configuration, tokenizer and weights, through
transformers.

Local directories, GGUF files and hub ids (`org/name`, `org/name@revision`). Weights come from
safetensors or GGUF only and no code from a checkpoint is run, unless the user opened either by an
explicit flag. Knows nothing of runners or quantization.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from draftbench.errors import ModelError

FINGERPRINT_BYTES = 1 << 20


@dataclass(frozen=True)
class Trust:
    """What the user allowed beyond plain weights; both run or may run code from the checkpoint."""

    remote_code: bool = False
    pickle: bool = False


@dataclass(frozen=True)
class ModelSource:
    """A model as the user named it."""

    spec: str
    trust: Trust = Trust()

    @property
    def local(self) -> bool:
        """Whether the weights are on this machine already."""
        return self._path.exists()

    @property
    def on_hub(self) -> bool:
        """Whether this names a model of the hub: `org/name` or `org/name@revision`."""
        path_like = self.spec.startswith((".", "/", "~")) or self.spec.endswith(".gguf")
        return not self.local and not path_like and self.spec.count("/") <= 1

    @property
    def _path(self) -> Path:
        return Path(self.spec).expanduser()

    @property
    def name(self) -> str:
        """A short name for reports: the last part of the path or id."""
        path = self._path
        if self.local:
            return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name
        return self.spec.partition("@")[0].rsplit("/", 1)[-1]

    def _arguments(self) -> tuple[str, dict[str, Any]]:
        """Where transformers finds it, and its keyword arguments."""
        options: dict[str, Any] = {"trust_remote_code": self.trust.remote_code}
        if self.local:
            path = self._path.resolve()
            if path.suffix == ".gguf":
                return str(path.parent), {**options, "gguf_file": path.name}
            return str(path), options
        if not self.on_hub:
            raise ModelError(
                f"no model at `{self.spec}`",
                hint="give a directory with config.json, a .gguf file, or a hub id like org/name",
            )
        repository, _, revision = self.spec.partition("@")
        # Once the configuration is there its commit is known, and all the rest comes from the same,
        # even if the branch moves on meanwhile.
        commit = getattr(self.__dict__.get("config"), "_commit_hash", None)
        return repository, {**options, "revision": commit or revision or "main"}

    @cached_property
    def config(self) -> Any:
        """The transformers configuration; reads no weights.

        Raises:
            ModelError: nothing there, or not a model that transformers knows.
        """
        from transformers import AutoConfig

        return self._load("configuration", AutoConfig.from_pretrained)

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; reads no weights."""
        from transformers import AutoTokenizer

        return self._load("tokenizer", AutoTokenizer.from_pretrained)

    def load(self, dtype: torch.dtype, device: str) -> Any:
        """The causal language model in evaluation mode on `device` ("auto": transformers' own
        device map).

        Raises:
            ModelError: weights missing, damaged, of another shape, or in a format not allowed.
        """
        from transformers import AutoModelForCausalLM

        options: dict[str, Any] = {"dtype": dtype, "output_loading_info": True}
        if "gguf_file" not in self._arguments()[1]:
            options["use_safetensors"] = None if self.trust.pickle else True
        if device != "cpu":
            options["device_map"] = device
        model, report = self._load("weights", AutoModelForCausalLM.from_pretrained, **options)
        if report["missing_keys"]:  # transformers fills them with random numbers
            first = min(report["missing_keys"])
            raise ModelError(
                f"the weights of `{self.spec}` lack {len(report['missing_keys'])} tensors that its "
                f"configuration asks for, {first} the first",
                hint="a file of the checkpoint is missing, or the configuration is another model's",
            )
        return model.eval().requires_grad_(False)

    def _load(self, what: str, loader: Any, **options: Any) -> Any:
        _quiet_libraries()
        where, fixed = self._arguments()
        try:
            return loader(where, **fixed, **options)
        except MemoryError:
            raise
        # transformers raises OSError, ValueError, KeyError, safetensors' and tokenizers' own errors
        # for bad files.
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ModelError(
                f"cannot load the {what} of `{self.spec}`: {reason}", hint=self._hint(what)
            ) from error

    def _hint(self, what: str) -> str:
        if not self.local:
            return "check the id, or download the model and give its directory"
        if what == "weights":
            return (
                "weights must be whole *.safetensors or .gguf files; `--allow-pickle` opens older "
                "formats"
            )
        return "the directory needs config.json and the tokenizer's files beside the weights"

    def fingerprint(self) -> str:
        """Hash of names, sizes and both ends of the model's files; the commit for a hub model.

        Both ends, since reading a 70B model twice to name it costs minutes; a change of weights
        inside one file alone would go unseen.
        """
        if not self.local:
            commit = getattr(self.config, "_commit_hash", None)
            return f"hub:{commit}" if commit else "hub:unknown"
        path = self._path.resolve()
        files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
        digest = hashlib.sha256()
        for file in files:
            if file.suffix not in {".safetensors", ".gguf", ".json", ".jinja", ".model", ".bin"}:
                continue
            size = file.stat().st_size
            digest.update(f"{file.name}:{size};".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(FINGERPRINT_BYTES))
                stream.seek(max(0, size - FINGERPRINT_BYTES))
                digest.update(stream.read(FINGERPRINT_BYTES))
        return digest.hexdigest()[:16]


def _quiet_libraries() -> None:
    """Keep the libraries' progress bars and notes off stderr, which belongs to the command."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)


def end_tokens(source: ModelSource) -> frozenset[int]:
    """Token ids that end a response: the generation configuration's, the model's and the
    tokenizer's.
    """
    from transformers import GenerationConfig

    found: set[int] = set()
    candidates = [source.config.get_text_config().eos_token_id, source.tokenizer.eos_token_id]
    try:
        where, options = source._arguments()
        revision = options.get("revision", "main")
        generation = GenerationConfig.from_pretrained(where, revision=revision)
        candidates.append(generation.eos_token_id)
    except OSError:  # the file is optional
        pass
    for value in candidates:
        found.update([value] if isinstance(value, int) else value or [])
    return frozenset(found)

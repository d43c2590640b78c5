"""Loads a model's configuration, tokenizer and weights through transformers.

A model is a directory, a GGUF file or a hub id (`org/name`, `org/name@revision`). Unless the user
allowed it by a flag, weights come only from safetensors or GGUF, and no code from a checkpoint
runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftbench.drafts.heads.gguf_file import head_config, head_tensors, holds_head
from draftbench.drafts.mtp.families import own_layers_of
from draftbench.errors import ModelError
from draftbench.hub import (
    Trust,
    exists,
    hub_answers,
    names_model,
    or_beside,
    refuse_missing,
    short_name,
    split_revision,
)
from draftbench.models.checkpoint import check_files
from draftbench.safe_files import UnreadableError

FINGERPRINT_BYTES = 1 << 20
FINGERPRINTED = {".safetensors", ".gguf", ".json", ".jinja", ".model", ".bin"}
# Beginnings or endings of the names of files with weights, or with a tokenizer.
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".gguf")
_TOKENIZERS = ("tokenizer", "vocab", "spiece", "tekken", "tiktoken")
SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
# A tensor of one of several layers: what holds the layers, and which of them it is.
_LAYER = re.compile(r"(.+?)\.(\d+)\.")
# Tables of which a layer that drafts may have its own, where transformers uses the target's, and
# how many of their rows are compared: training changes all.
_TABLES = ("lm_head.weight", "embed_tokens.weight", "shared_head.head.weight")
_COMPARED = 64
_MISSING = "a file of the checkpoint is missing, or the configuration is another model's"


@dataclass(frozen=True)
class ModelSource:
    """A model as the user named it; only what is asked for is read."""

    spec: str
    trust: Trust = field(default_factory=Trust)

    @property
    def local(self) -> bool:
        """Whether the weights are on this machine already."""
        return exists(self._path)

    @property
    def on_hub(self) -> bool:
        """Whether this is a model on the hub."""
        return names_model(self.spec)

    @property
    def _path(self) -> Path:
        return Path(self.spec).expanduser()

    @property
    def name(self) -> str:
        """A short name for reports: the last part of the path or id."""
        path = self._path
        if self.local:
            return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name
        return short_name(self.spec)

    @cached_property
    def lacks(self) -> tuple[str, ...]:
        """What a folder with a configuration lacks: weights, a tokenizer, or both."""
        if not self._path.is_dir():
            return ()
        files = [path.name for path in self._path.iterdir()]
        held = {
            "weights": any(name.endswith(_WEIGHTS) for name in files),
            "tokenizer": any(name.startswith(_TOKENIZERS) for name in files),
        }
        return tuple(what for what in held if not held[what])

    def _arguments(self) -> tuple[str, dict[str, Any]]:
        """Where transformers should load it from, and with which keyword arguments."""
        options: dict[str, Any] = {"trust_remote_code": self.trust.remote_code}
        refuse_missing(self.spec)
        if self.local:
            path = self._path.resolve()
            if path.suffix == ".gguf":
                return str(path.parent), {**options, "gguf_file": path.name}
            return str(path), options
        repository, revision = split_revision(self.spec)
        # Once the configuration is loaded its commit is known, and the rest comes from the same,
        # even if the branch changes meanwhile.
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
    def raw_config(self) -> dict[str, Any]:
        """config.json, or a GGUF file's equivalent, without the defaults that transformers fills
        in.

        Raises:
            ModelError: nothing there, or not readable.
        """
        from transformers import PreTrainedConfig

        with self._reading("configuration") as folder:
            if holds_head(folder):
                return head_config(folder)
            where, options = self._arguments()
            config: dict[str, Any]
            config, _ = PreTrainedConfig.get_config_dict(where, **options)
            return config

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; reads no weights."""
        from transformers import AutoTokenizer

        with self._reading("tokenizer"):
            where, options = self._arguments()
            tokenizer = AutoTokenizer.from_pretrained(where, **options)
            tokenizer("a")  # settings of a wrong type are only noticed here
            return tokenizer

    def tokens_in(self, text: str) -> int:
        """How many tokens a text has, with none added."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def load(self, dtype: torch.dtype, device: str) -> Any:
        """The causal language model in evaluation mode on `device` ("auto": transformers'
        device map).

        Raises:
            ModelError: weights missing, damaged, of another shape, or in a format not allowed.
        """
        from transformers import AutoModelForCausalLM

        options: dict[str, Any] = {"dtype": dtype, "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # its error names no tensor; the one below does
        if "gguf_file" not in self._arguments()[1]:
            options["use_safetensors"] = None if self.trust.pickle else True
        if device != "cpu":
            options["device_map"] = device
        model, report = self._load("weights", AutoModelForCausalLM.from_pretrained, **options)
        self._refuse_other_weights(model, report)
        return model.eval().requires_grad_(False)

    def load_mtp(self, model: Any) -> Any:
        """The layers with which this checkpoint's target, already loaded, drafts for itself.

        Raises:
            ModelError: weights missing or damaged.
        """
        from transformers.modeling_layers import MtpModel

        if name := self.trained_apart():
            raise ModelError(
                f"`{self.name}` has a {name} that is not the target's, which transformers leaves "
                "out",
                hint="leave `mtp` out, or measure it on an engine",
            )

        with self._reading("weights") as folder:
            model.config.name_or_path = str(folder)  # of this revision
            layers = MtpModel.from_pretrained(model, device_map={"": model.device})
        return layers.eval().requires_grad_(False)

    def trained_apart(self) -> str | None:
        """The name of a drafting layer's own output head or embedding, where its first rows differ
        from the target's; transformers would use the target's in its place.
        """
        from safetensors import safe_open

        rows: dict[str, torch.Tensor] = {}
        with self._reading("weights") as folder:
            for file in sorted(folder.glob("*.safetensors")):
                with safe_open(file, "pt") as stored:
                    names = [name for name in stored.keys() if name.endswith(_TABLES)]  # noqa: SIM118
                    rows |= {name: stored.get_slice(name)[:_COMPARED] for name in names}
        ours = {name.split(".")[-2]: row for name, row in rows.items() if ".layers." not in name}
        for name in sorted(name for name in rows if ".layers." in name):
            kind = "lm_head" if "head" in name and "lm_head" in ours else "embed_tokens"
            if kind not in ours or not torch.equal(rows[name], ours[kind]):
                return name
        return None

    @cached_property
    def skeleton(self) -> Any:
        """The model that the configuration describes, without storage.

        Raises:
            ModelError: transformers knows no language model of this kind.
        """
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        auto = AutoModelForImageTextToText if self.multimodal else AutoModelForCausalLM
        try:
            with torch.device("meta"):
                return auto.from_config(self.config, trust_remote_code=self.trust.remote_code)
        # Anyone may have written the configuration, and code that builds from it raises anything.
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            if first.startswith("Unrecognized configuration class"):
                first = "transformers has none of this kind"
            raise ModelError(
                f"`{self.name}` ({self.config.model_type}) cannot be built as a language model: "
                f"{first}",
                hint="target and draft must be causal language models that transformers knows",
            ) from error

    @cached_property
    def no_quantizer(self) -> str | None:
        """Why its stored weights cannot be loaded at all: transformers knows no such format; None
        if it does, or they are not quantized.
        """
        from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

        stored = getattr(self.config, "quantization_config", None)
        facts = stored if isinstance(stored, dict) else stored.to_dict() if stored else {}
        method = facts.get("quant_method")
        name = str(getattr(method, "value", method))
        if not facts or any(known.startswith(name) for known in AUTO_QUANTIZER_MAPPING):
            return None
        return f"`{self.name}` is stored as {name[:30]}, a format that transformers does not load"

    @cached_property
    def multimodal(self) -> bool:
        """Whether transformers can build it only together with the part that reads images."""
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = type(self.config)
        alone, together = (
            auto._model_mapping.get(kind, None) is not None
            for auto in (AutoModelForCausalLM, AutoModelForImageTextToText)
        )
        return together and not alone

    def stored_tensors(self) -> dict[str, torch.Tensor | None]:
        """Its safetensors files' tensors by name, without storage; None if one of the files is not
        here, empty if there are no such files.

        Raises:
            ModelError: a file is missing or cut.
        """
        from transformers.modeling_utils import load_state_dict

        with self._reading("weights") as folder:
            whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
            if folder.is_file():
                return {}  # GGUF
            if whole.exists() or not index.exists():
                file_of: dict[str, str] = {}
                files = [whole] if whole.exists() else []
            else:
                file_of = json.loads(index.read_bytes())["weight_map"]
                files = [folder / name for name in sorted(set(file_of.values()))]
            missing = [file.name for file in files if not file.exists()]
            if self.local and not self.trust.pickle and (missing or not files):
                raise FileNotFoundError(f"no file `{(missing or [whole.name])[0]}`")
            stored: dict[str, torch.Tensor | None] = dict.fromkeys(file_of)
            for file in files:
                if file.exists():
                    stored |= load_state_dict(str(file), map_location="meta")
            return stored

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its files' tensors, or those of a head's .gguf file, by name, for what transformers does
        not load.

        Raises:
            ModelError: a file is missing or damaged.
        """
        from safetensors.torch import load_file

        readers: dict[str, Any] = {"*.safetensors": load_file}
        if self.trust.pickle:
            pickled = partial(torch.load, map_location="cpu", weights_only=True)
            readers["pytorch_model*.bin"] = pickled
        with self._reading("weights") as folder:
            if holds_head(folder):
                return head_tensors(folder)
            if not self.local:
                import huggingface_hub

                where, options = self._arguments()
                huggingface_hub.snapshot_download(
                    where, revision=options["revision"], allow_patterns=list(readers)
                )
            found: dict[str, torch.Tensor] = {}
            for kind, load in readers.items():
                for file in sorted(folder.glob(kind)) if not found else ():
                    found |= load(file)
            if not found:
                raise FileNotFoundError("no file `model.safetensors`")
            return found

    def check_weights(self) -> None:
        """Refuse weights that cannot be loaded, judged by their files' headers; no weights are
        read. For quantized checkpoints and hub models, whose files come later, only names are
        compared.

        Raises:
            ModelError: a file is missing or cut, its tensors do not match the configuration, or the
                model reads images too, which no runner here does.
        """

        def without_storage(where: str, **options: Any) -> Any:
            return type(skeleton).from_pretrained(None, config=self.config, **options)

        if self.multimodal:
            raise ModelError(
                f"`{self.name}` ({self.config.model_type}) reads images too, and draftbench's own "
                "decoder does not run such models",
                hint="measure it on a serving engine, with text: `draftbench sweep --engine vllm`",
            )
        if self.no_quantizer is not None:
            raise ModelError(
                self.no_quantizer,
                hint="measure it on an engine that reads this format, or give the unquantized "
                "checkpoint and name a level with --quant or --target-quant",
            )
        stored = self.stored_tensors()
        if self.trust.remote_code and "auto_map" in self.raw_config:
            return  # its own code runs where the model is loaded, which may be another process
        skeleton = self.skeleton
        if getattr(self.config, "quantization_config", None) or None in stored.values():
            self._refuse_other_layers(skeleton, stored, fewer=True)
        elif stored:
            options = {"state_dict": stored, "device_map": "meta", "output_loading_info": True}
            model, report = self._load(
                "weights", without_storage, ignore_mismatched_sizes=True, **options
            )
            self._refuse_other_weights(model, report)

    def check_values(self) -> None:
        """Refuse weights that are not all finite numbers, as a failed conversion leaves them; reads
        all that are here.

        Raises:
            ModelError: a file is damaged, or holds NaN or an infinite number.
        """
        from safetensors import safe_open

        with self._reading("weights") as folder:
            for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
                with safe_open(file, "pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                        if why := not_finite(name, tensors.get_tensor(name)):
                            raise ValueError(why)

    def _refuse_other_weights(self, model: Any, report: Mapping[str, Any]) -> None:
        """Raise a ModelError if transformers' loading report says that the weights do not match the
        model.
        """
        if report["mismatched_keys"]:
            name, stored, wanted = min(report["mismatched_keys"])
            raise ModelError(
                f"the weights of `{self.spec}` have other shapes than its configuration asks for: "
                f"{name} is {list(stored)}, not {list(wanted)}",
                hint=_MISSING,
            )
        if report["missing_keys"]:  # transformers fills them with random numbers
            first = min(report["missing_keys"])
            raise ModelError(
                f"the weights of `{self.spec}` lack {len(report['missing_keys'])} of the tensors "
                f"that its configuration asks for, {first} the first",
                hint=_MISSING,
            )
        self._refuse_other_layers(model, report["unexpected_keys"])

    def _refuse_other_layers(
        self, model: Any, stored: Iterable[str], *, fewer: bool = False
    ) -> None:
        """Raise a ModelError if some of these tensors belong to layers that the model does not
        have, which transformers would silently ignore, or if they are of `fewer` layers.

        Lists of layers without any tensor are left out: transformers may rename them, or nobody
        knows their names yet.
        """
        asked = {n: len(m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList)}
        held: defaultdict[str, int] = defaultdict(int)
        for layer in filter(None, map(_LAYER.match, stored)):
            # Some checkpoints leave out the first word of all names.
            for place in (layer[1], f"{model.base_model_prefix}.{layer[1]}"):
                held[place] = max(held[place], int(layer[2]) + 1)
        own_layers, drafting = own_layers_of(self.raw_config), 0.0
        if own_layers is not None:  # they follow the others, and transformers leaves them out
            drafting = math.inf if own_layers.layers is None else own_layers.layers
        for place in asked.keys() & held.keys():
            wrong = (
                f"the weights of `{self.spec}` hold {held[place]} layers, and its configuration "
                f"asks for {asked[place]}"
            )
            if held[place] - asked[place] > drafting:
                raise ModelError(
                    f"{wrong}: the others would be left out",
                    hint="the configuration is another model's or was edited; to use the first "
                    "layers alone, save a checkpoint of them",
                )
            if fewer and held[place] < asked[place]:
                raise ModelError(wrong, hint=_MISSING)

    def _folder(self) -> Path:
        """The model's folder or .gguf file; for a hub model the cache's folder, where everything
        but the weights is fetched, so that every file can be checked before a library reads it.
        """
        where, options = self._arguments()
        if self.local:
            return self._path.resolve()
        import huggingface_hub
        from transformers.utils.hub import cached_file

        revision = options["revision"]
        cached_file(where, "config.json", revision=revision)  # its errors are readable
        folder = huggingface_hub.snapshot_download(
            where, revision=revision, allow_patterns=SMALL_FILES, ignore_patterns="*/*"
        )
        return Path(folder)

    def _load(self, what: str, loader: Any, **options: Any) -> Any:
        """Read the checkpoint with one of transformers' loaders."""
        with self._reading(what):
            where, fixed = self._arguments()
            return loader(where, **fixed, **options)

    @contextmanager
    def _reading(self, what: str) -> Iterator[Path]:
        """Check the model's files before they are read; what fails then is a ModelError. Yields
        the `_folder`.
        """
        quiet_libraries()
        if self.on_hub:
            hub_answers()
        refuse_missing(self.spec)
        hint = "the directory must hold config.json and the tokenizer's files with the weights"
        if not self.local:
            hint = "check the id or path, or download the model and give its directory"
            hint = or_beside(self.spec, hint)
        elif what == "weights":
            hint = (
                "weights must be complete *.safetensors or .gguf files; `--allow-pickle` opens "
                "older formats"
            )
        try:
            check_files(folder := self._folder())
            yield folder
        except (MemoryError, torch.OutOfMemoryError):
            raise
        # transformers raises OSError, ValueError, KeyError, safetensors' and tokenizers' own errors
        # for bad files.
        except Exception as error:
            if isinstance(error, PermissionError):
                hint = "see whether you may read it and its folder"
            elif re.search("does not recognize this architecture|custom code", str(error)):
                hint = (
                    "a newer transformers may know it, and so may a serving engine (`--engine`); "
                    "`--trust-remote-code` runs code that the checkpoint brings"
                )
            elif isinstance(error, UnreadableError):
                hint = error.hint or "download the checkpoint again, or give another"
            reason = _first_sentence(error)
            raise ModelError(
                f"cannot load the {what} of `{self.spec}`: {reason}", hint=hint
            ) from error

    def fingerprint(self) -> str:
        """A hash of the names, sizes and both ends of the model's files; for a hub model the
        commit.

        A change in the middle of a file that keeps its size goes unnoticed: reading all of a 70B
        model again to identify it would take minutes.
        """
        if not self.local:
            return f"hub:{self.raw_config.get('_commit_hash') or 'unknown'}"
        path = self._path.resolve()
        files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
        digest = hashlib.sha256()
        for file in files:
            if file.suffix in FINGERPRINTED:
                size = file.stat().st_size
                digest.update(f"{file.name}:{size};".encode())
                with file.open("rb") as stream:
                    digest.update(stream.read(FINGERPRINT_BYTES))
                    stream.seek(max(0, size - FINGERPRINT_BYTES))
                    digest.update(stream.read(FINGERPRINT_BYTES))
        return digest.hexdigest()[:16]

    def parts(self) -> dict[str, str]:
        """Hashes of the tokenizer and of the chat template, which may change without the weights;
        empty for a model without a tokenizer.
        """
        try:
            tokenizer = self.tokenizer
        except ModelError:  # raised again where a tokenizer is needed; a draft may do without
            return {}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        text = backend.to_str() if backend else repr(sorted(tokenizer.get_vocab().items()))
        texts = {"tokenizer": text, "chat template": repr(tokenizer.chat_template)}
        return {name: hashlib.sha256(t.encode()).hexdigest()[:16] for name, t in texts.items()}


def not_finite(name: str, weight: torch.Tensor) -> str | None:
    """That a weight holds what is no number; None if all of it is finite."""
    if not weight.is_floating_point() or weight.itemsize == 1:  # FP8 has its own codes
        return None
    wrong = weight.numel() - int(weight.isfinite().sum())
    return (
        f"{wrong:,} of the {weight.numel():,} numbers of {name} are not finite" if wrong else None
    )


def end_tokens(source: ModelSource) -> frozenset[int]:
    """The token ids that end a response, from the model's configuration, its tokenizer and its
    generation configuration together.

    Raises:
        ModelError: one of them names something that is not a token id.
    """
    from transformers import GenerationConfig

    where, options = source._arguments()
    named = [source.config.get_text_config().eos_token_id, source.tokenizer.eos_token_id]
    try:
        revision = options.get("revision", "main")
        named.append(GenerationConfig.from_pretrained(where, revision=revision).eos_token_id)
    except OSError:  # the file is optional
        pass
    # transformers does not check the file's values.
    except Exception as error:
        raise ModelError(
            f"cannot read generation_config.json of `{source.spec}`: {_first_sentence(error)}",
            hint="correct or remove the file",
        ) from error
    tokens: list[int] = []
    for value in named:
        tokens += value if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in tokens):
        raise ModelError(
            f"the end tokens of `{source.spec}` are not token ids",
            hint="correct `eos_token_id` in its generation_config.json or config.json",
        )
    return frozenset(tokens)


def _first_sentence(error: Exception) -> str:
    """The first sentence of a library's error, since transformers adds advice for its own users;
    all of a torch error, whose reason comes last.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return f"{os.strerror(error.errno)}: {error.filename}"
    text = " ".join(str(error).split())
    reason = text if isinstance(error, RuntimeError) else text.split(". ")[0]
    return reason[:300] or type(error).__name__


def quiet_libraries() -> None:
    """Keep the libraries' progress bars and notes off stderr, which is the command's."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging as transformers_logging

    # This progress bar is not among those that are switched off below.
    modeling_gguf_pytorch_utils.tqdm = lambda tensors, **_: tensors
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("torchao", "torch.utils._pytree", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)

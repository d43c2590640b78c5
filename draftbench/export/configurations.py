"""A setting → the configuration with which an engine serves it.

k has many names: `num_speculative_tokens` of vLLM, `n-max` of llama.cpp, `max_draft_len` of
TensorRT-LLM and `num_assistant_tokens` of transformers are k; `num_steps` of SGLang is k and its
`num_draft_tokens` k + 1.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from draftbench.errors import UsageError, did_you_mean
from draftbench.export.setting import Setting
from draftbench.models.engine_rules import (
    ENGINES,
    LLAMA_CPP_ROWS,
    llama_cpp_draft,
    sglang_draft,
    tensorrt_llm_draft,
    transformers_draft,
    vllm_draft,
)
from draftbench.records import DraftingMode

Version = tuple[int, int] | None
_RENAMING = ("before-rename", "after-rename")
_BITS = {"int8": 8, "int4": 4}
_GGUF = {"int4": "Q4_K_M", "int8": "Q8_0", "fp8": "Q8_0"}
_COMMENT = textwrap.TextWrapper(
    100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
)


@dataclass(frozen=True)
class EngineConfiguration:
    """What to paste, and what its user must know."""

    text: str
    notes: tuple[str, ...]


def known_engine(name: str) -> str:
    """The engine as `ENGINES` spells it.

    Raises:
        UsageError: it is not known, or serves no draft model.
    """
    known = ", ".join(ENGINES)
    if name == "tgi":
        raise UsageError(
            "TGI serves no draft model; its `--speculate K` looks up n-grams",
            hint=f"use one of {known}",
        )
    engine = name.replace(".", "")
    if engine not in ENGINES:
        raise UsageError(
            f"unknown engine `{name}`",
            hint=f"{did_you_mean(engine, ENGINES, '')} the engines are {known}".strip(),
        )
    return engine


def configure(setting: Setting, engine: str, version: str | None = None) -> EngineConfiguration:
    """What `engine` in `version` (default: the newest known) accepts.

    Raises:
        UsageError: an engine or a version that cannot serve this, or that is not known.
    """
    engine = known_engine(engine)
    if engine == "llamacpp":
        if version not in (None, *_RENAMING):
            raise UsageError(
                f"llama.cpp's flags are known before and after their renaming, not for `{version}`",
                hint=f"give --engine-version {' or '.join(_RENAMING)}",
            )
        text, notes = _llamacpp(setting, renamed=version != "before-rename")
    else:
        writers = {
            "vllm": _vllm,
            "sglang": _sglang,
            "tensorrt-llm": _tensorrt_llm,
            "transformers": _transformers,
        }
        text, notes = writers[engine](setting, _number(version))
    differences = (*setting.differences, *_unquantized(setting, engine))
    if engine != "vllm":  # JSON, alone of the formats, has no comments
        text = "\n".join([*map(_COMMENT.fill, differences), text])
    return EngineConfiguration(text, (*differences, *notes, *setting.notes, *_names(setting)))


def _number(version: str | None) -> Version:
    if version is None:
        return None
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})(?![0-9])", version)
    if not numbers:
        raise UsageError(f"`{version}` is not a version", hint="for example 0.26 or 1.4.0rc1")
    return int(numbers[1]), int(numbers[2])


def _vllm(setting: Setting, version: Version) -> tuple[str, list[str]]:
    """The JSON of `--speculative-config`."""
    target = shlex.quote(setting.target)
    notes = [f"vllm serve {target} --speculative-config '…this JSON…'", ENGINES["vllm"].form]
    lengths = _vllm_lengths(setting, version, notes)
    if setting.draft is None:
        if version is not None and version < (0, 10):
            raise _too_old("vLLM", "0.10", "n-gram configurations of this form")
        shortest, longest = setting.lookup
        fields = {"method": "ngram", **lengths}
        fields |= {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
        return json.dumps(fields), notes
    if version is not None and version < (0, 15):
        raise _too_old("vLLM", "0.15", "draft models on its current engine")
    current = version is None or version >= (0, 26)
    greedy = setting.mode is DraftingMode.GREEDY
    sizes = _different_sizes(setting)
    if sizes and not (current and greedy):
        raise UsageError(
            f"vLLM refuses this pair: its vocabularies have {sizes} entries",
            hint="from 0.26 it maps them where the draft is greedy; sweep with --mode greedy",
        )
    fields = {**vllm_draft(setting.draft), **lengths}
    if setting.quant == "fp8":
        fields["quantization"] = "fp8"
    if current:
        fields["draft_sample_method"] = "greedy" if greedy else "probabilistic"
        if setting.mode is DraftingMode.SAMPLED:
            notes += _other_mode(setting, "vLLM", "sampled-temperature-only")
    elif not greedy:
        notes += _other_mode(setting, "vLLM before 0.26", "greedy")
    if sizes:
        fields |= vllm_draft(setting.draft, translated=True)
        notes.append(f"the vocabularies have {sizes} entries: vLLM drafts from what they share")
    return json.dumps(fields), notes


def _vllm_lengths(setting: Setting, version: Version, notes: list[str]) -> dict[str, Any]:
    """The draft length, and from 0.25 on the lengths by batch size; adds to `notes`."""
    if not setting.schedule:
        return {"num_speculative_tokens": setting.k}
    if version is not None and version < (0, 25):
        notes += _one_length(setting, "vLLM before 0.25")
        return {"num_speculative_tokens": setting.k}
    notes.append(
        "vLLM tests its schedule with trained heads (a draft model followed it in 0.32), and drops "
        "it for `num_speculative_tokens` under data parallelism"
    )
    if any(k == 0 for _, _, k in setting.schedule):
        notes.append(
            "where the schedule drafts nothing vLLM was still slower than without it, by 7 % at 2 "
            "requests and 22 % at 189 (vLLM issue 49548): measure that load"
        )
    return {
        "num_speculative_tokens": setting.longest,
        "num_speculative_tokens_per_batch_size": [list(step) for step in setting.schedule],
    }


def _sglang(setting: Setting, _: Version) -> tuple[str, list[str]]:
    """The launch command."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", setting.target]
    notes = [ENGINES["sglang"].form]
    if setting.draft is None:
        words += ["--speculative-algorithm", "NGRAM"]
        words += ["--speculative-num-draft-tokens", str(setting.k + 1)]
        notes.append(
            "SGLang looks up n-grams in the texts of all requests, not of one prompt: its "
            "acceptance was not measured"
        )
        return shlex.join(words), [*notes, *_one_length(setting, "SGLang")]
    words += sglang_draft(setting.draft, setting.quant, setting.k)
    if setting.quant in _BITS:
        notes.append("for such a checkpoint, replace `unquant` by its method, for example `awq`")
    if setting.mode is not DraftingMode.GREEDY:
        notes += _other_mode(setting, "SGLang", "greedy")
    notes.append("data-parallel attention cannot be combined with STANDALONE")
    notes += _one_length(setting, "SGLang (`--speculative-adaptive` is for EAGLE only)")
    return shlex.join(words), [*notes, *_unchecked_vocabularies(setting, "SGLang")]


def _llamacpp(setting: Setting, *, renamed: bool) -> tuple[str, list[str]]:
    """The llama-server command, with the flags of before or after their renaming."""
    words = ["llama-server", "-m", _gguf(setting.target, setting.target_quant)]
    k, shortest = str(setting.k), str(setting.lookup[0])
    older = "flags of builds before their renaming in April 2026 (pull request 22397)"
    notes = [ENGINES["llamacpp"].form if renamed else older, *_one_length(setting, "llama.cpp")]
    if setting.draft is None:
        kind = "simple-" if renamed else ""
        words += ["--spec-type", "ngram-simple", f"--spec-ngram-{kind}size-n", shortest]
        words += [f"--spec-ngram-{kind}size-m", k, *([] if renamed else ["--draft-max", k])]
        notes.append(f"llama.cpp looks up n-grams of one length; {shortest} is the run's shortest")
        return shlex.join(words), notes
    file = _gguf(setting.draft, setting.quant)
    greedy = setting.mode is DraftingMode.GREEDY
    if renamed:
        words += [*llama_cpp_draft(file), "--spec-draft-n-max", k, "--spec-draft-n-min", "0"]
        sampling = "greedy" if greedy else "probabilistic"
        words += ["--spec-draft-p-min", "0", "--spec-draft-sampling", sampling]
    else:
        words += ["-md", file, "--draft-max", k, "--draft-min", "0", "--draft-p-min", "0"]
        notes += [] if greedy else _other_mode(setting, "llama.cpp", "greedy")
    if setting.on_gpu:
        words += ["-ngl", "99", "-ngld", "99"]
    notes.append(
        "convert both models to GGUF where they are not; the nearest types are named, but their "
        "kernels are not the ones that were measured: measure again there"
    )
    target, draft = setting.vocabularies or (0, 0)
    if abs(target - draft) > LLAMA_CPP_ROWS:
        apart = abs(target - draft)
        notes.append(f"llama.cpp refuses this pair: vocabulary sizes differ by {apart}")
    return shlex.join(words), notes


def _gguf(name: str, quant: str) -> str:
    """A GGUF file as it is, or what a converted model would be called."""
    if name.endswith(".gguf"):
        return name
    return f"{PurePath(name.partition('@')[0]).name}-{_GGUF.get(quant, 'BF16')}.gguf"


def _tensorrt_llm(setting: Setting, version: Version) -> tuple[str, list[str]]:
    """The YAML of `trtllm-serve TARGET --config`."""
    import yaml

    notes = [
        f"trtllm-serve {shlex.quote(setting.target)} --config THIS_FILE",
        ENGINES["tensorrt-llm"].form,
    ]
    older = version is not None and version < (1, 3)
    lengths = _tensorrt_lengths(setting, older, notes)
    if setting.draft is None:
        fields = {"decoding_type": "NGram", **lengths}
        fields["max_matching_ngram_size"] = setting.lookup[1]
    else:
        fields = tensorrt_llm_draft(setting.draft, **lengths)
        if older:
            fields["speculative_model_dir"] = fields.pop("speculative_model")
        if setting.mode is not DraftingMode.GREEDY:
            notes += _other_mode(setting, "TensorRT-LLM", "greedy")
        notes += _unchecked_vocabularies(setting, "TensorRT-LLM")
    document = {"disable_overlap_scheduler": True, "speculative_config": fields}
    return yaml.safe_dump(document, sort_keys=False).rstrip("\n"), notes


def _tensorrt_lengths(setting: Setting, older: bool, notes: list[str]) -> dict[str, Any]:
    """The draft length, and the lengths by batch size; adds to `notes`.

    Keys are the largest batch of each length, before 1.3 the smallest (pull request 10860).
    """
    steps = setting.schedule
    if not steps:
        return {"max_draft_len": setting.k}
    if older and steps[0][2] < setting.longest:
        notes += _one_length(setting, "TensorRT-LLM before 1.3, whose schedules only fall,")
        return {"max_draft_len": setting.k}
    if setting.draft is not None and any(k == 0 for _, _, k in steps):
        notes.append(
            "TensorRT-LLM's DraftTarget drafts one token where the schedule says 0: serve such "
            "loads from an instance without a draft"
        )
    schedule = {(first if older else last): k for first, last, k in steps}
    return {"max_draft_len": setting.longest, "draft_len_schedule": schedule}


def _transformers(setting: Setting, version: Version) -> tuple[str, list[str]]:
    """A Python snippet; k is set on the draft, whose defaults would change it from round to
    round.
    """
    if version is not None and version < (4, 45):
        raise _too_old("transformers", "4.45", "`assistant_confidence_threshold`")
    notes = [ENGINES["transformers"].form, *_one_length(setting, "transformers")]
    loading = 'dtype="auto", device_map="cuda"' if setting.on_gpu else 'dtype="auto"'
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({setting.target!r})",
        f"target = AutoModelForCausalLM.from_pretrained({setting.target!r}, {loading})",
    ]
    if setting.draft is None:
        lookup = f"prompt_lookup_num_tokens={setting.k}, max_matching_ngram_size="
        arguments = f"{lookup}{setting.lookup[1]}"
    else:
        lines += [
            f"draft = AutoModelForCausalLM.from_pretrained({setting.draft!r}, {loading})",
            f"draft.generation_config.num_assistant_tokens = {setting.k}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
        ]
        sizes = _different_sizes(setting)
        arguments = transformers_draft(two_tokenizers=sizes is not None)
        if setting.mode is not DraftingMode.SAMPLED:
            notes += _other_mode(setting, "transformers", "sampled")
        if sizes:
            lines.append(f"draft_tokenizer = AutoTokenizer.from_pretrained({setting.draft!r})")
            notes.append(
                f"the vocabularies have {sizes} entries: transformers takes them for different "
                "ones and translates through text"
            )
    lines += [
        'inputs = tokenizer("Once upon a time", return_tensors="pt").to(target.device)',
        f"output = target.generate(**inputs, {arguments})",
    ]
    return "\n".join(lines), notes


def _unquantized(setting: Setting, engine: str) -> list[str]:
    """What to do about a draft at a level that the engine does not make by itself."""
    rules = ENGINES[engine]
    if setting.draft is None or rules.levels is None or setting.quant in rules.levels:
        return []
    form = f"{_BITS[setting.quant]}-bit" if setting.quant in _BITS else setting.quant
    return [
        f"the run measured this draft at {setting.quant}, quantized while loading, by kernels that "
        f"{rules.name} does not have: make a {form} checkpoint of it (llm-compressor, GPTQ or "
        "AWQ), name it with --draft and measure it; an unquantized draft is not the one recommended"
    ]


def _other_mode(setting: Setting, engine: str, mode: str) -> list[str]:
    """A warning where drafting in another mode than measured changes acceptance."""
    if not setting.sampled:
        return []
    return [
        f"{engine} drafts `{mode}`, the run measured `{setting.mode}`: above temperature 0 "
        "acceptance will differ"
    ]


def _one_length(setting: Setting, engine: str) -> list[str]:
    """What an engine without draft lengths by load leaves to its user."""
    if not setting.schedule:
        return []
    steps = ", ".join(f"k = {k} from {first} to {last}" for first, last, k in setting.schedule)
    return [
        f"{engine} takes one draft length for all loads: it is k = {setting.k}, while the run "
        f"recommends {steps} concurrent requests"
    ]


def _different_sizes(setting: Setting) -> str | None:
    """The sizes of two vocabularies, where they are known to differ."""
    sizes = setting.vocabularies
    return f"{sizes[0]} and {sizes[1]}" if sizes and sizes[0] != sizes[1] else None


def _unchecked_vocabularies(setting: Setting, engine: str) -> list[str]:
    """A warning of an engine that compares no vocabularies."""
    sizes = _different_sizes(setting)
    if sizes is None:
        return []
    return [
        f"the vocabularies have {sizes} entries: {engine} needs the same tokenizer and does not "
        "check; `draftbench check` says whether the ids agree"
    ]


def _names(setting: Setting) -> list[str]:
    """What must be done about names that mean something on the measuring machine only."""
    notes = []
    if setting.target_quant != "none":
        notes.append(f"the target was measured at {setting.target_quant}: serve it at that level")
    for name in filter(None, (setting.target, setting.draft)):
        if name in (".", "..") or name.startswith(("~", "./", "../")):
            notes.append(f"`{name}` is a path on the measuring machine: replace it")
    for spec in setting.pinned:
        notes.append(f"the run measured `{spec}`: pin this revision in the engine")
    return notes


def _too_old(engine: str, oldest: str, feature: str) -> UsageError:
    return UsageError(
        f"{engine} before {oldest} has no {feature}", hint=f"use {engine} {oldest} or newer"
    )

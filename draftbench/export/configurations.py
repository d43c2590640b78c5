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

Version = tuple[int, int]
_OLDEST, _NEWEST = (0, 0), (10**9, 0)
_RENAMING = {"before-rename": _OLDEST, "after-rename": _NEWEST}
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


@dataclass(frozen=True)
class _Written:
    """What an engine is given: the `mode` in which it will draft, None for prompt lookup, and
    whether the draft lengths by load are in the text.
    """

    text: str
    notes: list[str]
    mode: DraftingMode | None
    scheduled: bool = False


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
    rules, number = ENGINES[engine], _version(engine, version)
    writers = {
        "vllm": _vllm,
        "sglang": _sglang,
        "llamacpp": _llamacpp,
        "tensorrt-llm": _tensorrt_llm,
        "transformers": _transformers,
    }
    written = writers[engine](setting, number)
    name = rules.name if version in (None, *_RENAMING) else f"{rules.name} {version}"
    differences, notes = list(setting.differences), written.notes
    if setting.draft is not None and rules.levels and setting.quant not in rules.levels:
        form = f"{_BITS[setting.quant]}-bit" if setting.quant in _BITS else setting.quant
        differences.append(
            f"the run measured this draft at {setting.quant}, quantized while loading, by kernels "
            f"that {rules.name} does not have: make a {form} checkpoint of it (llm-compressor, "
            "GPTQ or AWQ), name it with --draft and measure it; an unquantized draft is not the "
            "one recommended"
        )
    if setting.sampled and written.mode not in (None, setting.mode):
        notes.append(
            f"{name} drafts `{written.mode}`, the run measured `{setting.mode}`: above temperature "
            "0 acceptance will differ"
        )
    if setting.schedule and not written.scheduled:
        steps = ", ".join(f"k = {k} from {first} to {last}" for first, last, k in setting.schedule)
        notes.append(
            f"{name} takes one draft length for all loads: it is k = {setting.k}, while the run "
            f"recommends {steps} concurrent requests"
        )
    notes += setting.notes
    if setting.target_quant != "none":
        notes.append(f"the target was measured at {setting.target_quant}: serve it at that level")
    for model in filter(None, (setting.target, setting.draft)):
        if model in (".", "..") or model.startswith(("~", "./", "../")):
            notes.append(f"`{model}` is a path on the measuring machine: replace it")
    for spec in setting.pinned:
        notes.append(f"the run measured `{spec}`: pin this revision in the engine")
    text = written.text
    if engine != "vllm":  # JSON, alone of the formats, has no comments
        text = "\n".join([*map(_COMMENT.fill, differences), text])
    return EngineConfiguration(text, (*differences, *notes))


def _version(engine: str, version: str | None) -> Version:
    if version is None:
        return _NEWEST
    if engine == "llamacpp":
        if version not in _RENAMING:
            raise UsageError(
                f"llama.cpp's flags are known before and after their renaming, not for `{version}`",
                hint=f"give --engine-version {' or '.join(_RENAMING)}",
            )
        return _RENAMING[version]
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})(?![0-9])", version)
    if not numbers:
        raise UsageError(f"`{version}` is not a version", hint="for example 0.26 or 1.4.0rc1")
    return int(numbers[1]), int(numbers[2])


def _too_old(engine: str, oldest: str, feature: str) -> UsageError:
    return UsageError(
        f"{engine} before {oldest} has no {feature}", hint=f"use {engine} {oldest} or newer"
    )


def _vllm(setting: Setting, version: Version) -> _Written:
    """The JSON of `--speculative-config`."""
    target = shlex.quote(setting.target)
    notes = [f"vllm serve {target} --speculative-config '…this JSON…'", ENGINES["vllm"].form]
    lengths: dict[str, object] = {"num_speculative_tokens": setting.k}
    scheduled = bool(setting.schedule) and version >= (0, 25)
    if scheduled:
        lengths = {
            "num_speculative_tokens": setting.longest,
            "num_speculative_tokens_per_batch_size": [list(step) for step in setting.schedule],
        }
        notes.append(
            "vLLM tests its schedule with trained heads (a draft model followed it in 0.32), and "
            "drops it for `num_speculative_tokens` under data parallelism"
        )
        if any(k == 0 for _, _, k in setting.schedule):
            notes.append(
                "where the schedule drafts nothing vLLM was still slower than without it, by 7 % "
                "at 2 requests and 22 % at 189 (vLLM issue 49548): measure that load"
            )
    if setting.draft is None:
        if version < (0, 10):
            raise _too_old("vLLM", "0.10", "n-gram configurations of this form")
        shortest, longest = setting.lookup
        fields = {"method": "ngram", **lengths}
        fields |= {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
        return _Written(json.dumps(fields), notes, None, scheduled)
    if version < (0, 15):
        raise _too_old("vLLM", "0.15", "draft models on its current engine")
    current = version >= (0, 26)
    greedy = setting.mode is DraftingMode.GREEDY
    if setting.sizes and not (current and greedy):
        raise UsageError(
            f"vLLM refuses this pair: its vocabularies have {setting.sizes} entries",
            hint="from 0.26 it maps them where the draft is greedy; sweep with --mode greedy",
        )
    fields = {**vllm_draft(setting.draft), **lengths}
    if setting.quant == "fp8":
        fields["quantization"] = "fp8"
    if current:
        fields["draft_sample_method"] = "greedy" if greedy else "probabilistic"
    if setting.sizes:
        fields |= vllm_draft(setting.draft, translated=True)
        notes.append(
            f"the vocabularies have {setting.sizes} entries: vLLM drafts from what they share"
        )
    only_greedy = greedy or not current
    mode = DraftingMode.GREEDY if only_greedy else DraftingMode.SAMPLED_TEMPERATURE_ONLY
    return _Written(json.dumps(fields), notes, mode, scheduled)


def _sglang(setting: Setting, version: Version) -> _Written:
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
        return _Written(shlex.join(words), notes, None)
    words += sglang_draft(setting.draft, setting.quant, setting.k)
    if setting.quant in _BITS:
        notes.append("for such a checkpoint, replace `unquant` by its method, for example `awq`")
    notes.append("data-parallel attention cannot be combined with STANDALONE")
    if setting.schedule:
        notes.append("`--speculative-adaptive` is for EAGLE only")
    return _Written(
        shlex.join(words), [*notes, *_unchecked(setting, "SGLang")], DraftingMode.GREEDY
    )


def _llamacpp(setting: Setting, version: Version) -> _Written:
    """The llama-server command, with the flags of before or after their renaming."""
    renamed = version == _NEWEST
    words = ["llama-server", "-m", _gguf(setting.target, setting.target_quant)]
    k, shortest = str(setting.k), str(setting.lookup[0])
    older = "flags of builds before their renaming in April 2026 (pull request 22397)"
    notes = [ENGINES["llamacpp"].form if renamed else older]
    if setting.draft is None:
        kind = "simple-" if renamed else ""
        words += ["--spec-type", "ngram-simple", f"--spec-ngram-{kind}size-n", shortest]
        words += [f"--spec-ngram-{kind}size-m", k, *([] if renamed else ["--draft-max", k])]
        notes.append(f"llama.cpp looks up n-grams of one length; {shortest} is the run's shortest")
        return _Written(shlex.join(words), notes, None)
    file = _gguf(setting.draft, setting.quant)
    if renamed:
        sampling = "greedy" if setting.mode is DraftingMode.GREEDY else "probabilistic"
        words += [*llama_cpp_draft(file), "--spec-draft-n-max", k, "--spec-draft-n-min", "0"]
        words += ["--spec-draft-p-min", "0", "--spec-draft-sampling", sampling]
    else:
        words += ["-md", file, "--draft-max", k, "--draft-min", "0", "--draft-p-min", "0"]
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
    return _Written(shlex.join(words), notes, setting.mode if renamed else DraftingMode.GREEDY)


def _tensorrt_llm(setting: Setting, version: Version) -> _Written:
    """The YAML of `trtllm-serve TARGET --config`."""
    import yaml

    serve = f"trtllm-serve {shlex.quote(setting.target)} --config THIS_FILE"
    notes = [serve, ENGINES["tensorrt-llm"].form]
    older, steps = version < (1, 3), setting.schedule
    # Before 1.3 a schedule can only fall.
    scheduled = bool(steps) and not (older and steps[0][2] < setting.longest)
    lengths: dict[str, object] = {"max_draft_len": setting.k}
    if scheduled:
        # Keys are the largest batch of each length, before 1.3 the smallest (pull request 10860).
        schedule = {(first if older else last): k for first, last, k in steps}
        lengths = {"max_draft_len": setting.longest, "draft_len_schedule": schedule}
        if setting.draft is not None and any(k == 0 for _, _, k in steps):
            notes.append(
                "TensorRT-LLM's DraftTarget drafts one token where the schedule says 0: serve such "
                "loads from an instance without a draft"
            )
    mode = None
    if setting.draft is None:
        fields = {"decoding_type": "NGram", **lengths}
        fields["max_matching_ngram_size"] = setting.lookup[1]
    else:
        mode = DraftingMode.GREEDY
        fields = tensorrt_llm_draft(setting.draft, **lengths)
        if older:
            fields["speculative_model_dir"] = fields.pop("speculative_model")
        notes += _unchecked(setting, "TensorRT-LLM")
    document = {"disable_overlap_scheduler": True, "speculative_config": fields}
    text = yaml.safe_dump(document, sort_keys=False).rstrip("\n")
    return _Written(text, notes, mode, scheduled)


def _transformers(setting: Setting, version: Version) -> _Written:
    """A Python snippet; k is set on the draft, whose defaults would change it from round to
    round.
    """
    if version < (4, 45):
        raise _too_old("transformers", "4.45", "`assistant_confidence_threshold`")
    notes = [ENGINES["transformers"].form]
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
        arguments = transformers_draft(two_tokenizers=setting.sizes is not None)
        if setting.sizes:
            lines.append(f"draft_tokenizer = AutoTokenizer.from_pretrained({setting.draft!r})")
            notes.append(
                f"the vocabularies have {setting.sizes} entries: transformers takes them for "
                "different ones and translates through text"
            )
    lines += [
        'inputs = tokenizer("Once upon a time", return_tensors="pt").to(target.device)',
        f"output = target.generate(**inputs, {arguments})",
    ]
    mode = None if setting.draft is None else DraftingMode.SAMPLED
    return _Written("\n".join(lines), notes, mode)


def _gguf(name: str, quant: str) -> str:
    """A GGUF file as it is, or what a converted model would be called."""
    if name.endswith(".gguf"):
        return name
    return f"{PurePath(name.partition('@')[0]).name}-{_GGUF.get(quant, 'BF16')}.gguf"


def _unchecked(setting: Setting, engine: str) -> list[str]:
    """A warning of an engine that compares no vocabularies."""
    if setting.sizes is None:
        return []
    return [
        f"the vocabularies have {setting.sizes} entries: {engine} needs the same tokenizer and "
        "does not check; `draftbench check` says whether the ids agree"
    ]

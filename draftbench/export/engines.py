"""A setting → the configuration of one engine. Each schema states the version it was taken from.

k has many names: `num_speculative_tokens` of vLLM, `n-max` of llama.cpp, `max_draft_len` of
TensorRT-LLM and `num_assistant_tokens` of transformers are k; `num_steps` of SGLang is k and its
`num_draft_tokens` k + 1.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from draftbench.errors import UsageError
from draftbench.export.remarks import (
    BITS,
    fixed,
    other_mode,
    sizes_differ,
    too_old,
    unmapped,
    untranslated,
)
from draftbench.export.setting import Setting
from draftbench.records import DraftingMode

Version = tuple[int, int] | None
# Largest difference of vocabulary sizes that llama.cpp lets pass.
_LLAMACPP_VOCABULARY = 128


@dataclass(frozen=True)
class Configuration:
    """What to paste, what its user must know, and how it is not what the run recommends."""

    text: str
    notes: tuple[str, ...]
    unlike: tuple[str, ...] = ()


def vllm(setting: Setting, version: Version) -> Configuration:
    """The JSON of `--speculative-config`.

    Raises:
        UsageError: a version without draft models, or one that refuses the pair.
    """
    usage = f"vllm serve {shlex.quote(setting.target)} --speculative-config '…this JSON…'"
    notes = [usage, "schema of vLLM 0.32, validated by its own SpeculativeConfig"]
    if setting.draft is not None:
        return _vllm_draft(setting, setting.draft, version, notes)
    if version is not None and version < (0, 10):
        raise too_old("vLLM", "0.10", "n-gram configurations of this form")
    fields: dict[str, Any] = {"method": "ngram", **_vllm_lengths(setting, version, notes)}
    fields |= {"prompt_lookup_min": setting.lookup[0], "prompt_lookup_max": setting.lookup[1]}
    return Configuration(json.dumps(fields), tuple(notes))


def _vllm_draft(setting: Setting, draft: str, version: Version, notes: list[str]) -> Configuration:
    if version is not None and version < (0, 15):
        raise too_old("vLLM", "0.15", "draft models on its current engine")
    current = version is None or version >= (0, 26)
    greedy = setting.mode is DraftingMode.GREEDY
    fields: dict[str, Any] = {"method": "draft_model", "model": draft}
    fields |= _vllm_lengths(setting, version, notes)
    if setting.quant == "fp8":
        fields["quantization"] = "fp8"
    if current:
        fields["draft_sample_method"] = "greedy" if greedy else "probabilistic"
        other = setting.mode is DraftingMode.SAMPLED
        notes += other_mode(setting, "vLLM", "sampled-temperature-only") if other else []
    else:
        notes += [] if greedy else other_mode(setting, "vLLM before 0.26", "greedy")
    if sizes_differ(setting):
        sizes = "{} and {}".format(*setting.vocabularies or ())
        if not current or not greedy:
            raise UsageError(
                f"vLLM refuses this pair: its vocabularies have {sizes} entries",
                hint="from 0.26 it maps them where the draft is greedy; sweep with --mode greedy",
            )
        fields["use_heterogeneous_vocab"] = True
        notes.append(f"the vocabularies have {sizes} entries: vLLM drafts from what they share")
    unlike = unmapped(setting, "vLLM", ("none", "fp8"))
    return Configuration(json.dumps(fields), tuple(notes), unlike)


def _vllm_lengths(setting: Setting, version: Version, notes: list[str]) -> dict[str, Any]:
    """The draft length, and from 0.25 on the lengths by batch size; adds to `notes`."""
    if not setting.schedule:
        return {"num_speculative_tokens": setting.k}
    if version is not None and version < (0, 25):
        notes += fixed(setting, "vLLM before 0.25")
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


def sglang(setting: Setting, _: Version) -> Configuration:
    """The launch command; the draft's quantization is always written out, as its default is the
    target's.
    """
    words = ["python", "-m", "sglang.launch_server", "--model-path", setting.target]
    notes = ["schema of SGLang's speculative decoding guide at 067ad4d3, autumn 2026"]
    if setting.draft is None:
        words += ["--speculative-algorithm", "NGRAM"]
        words += ["--speculative-num-draft-tokens", str(setting.k + 1)]
        notes.append(
            "SGLang looks up all requests' texts, not one prompt's: its acceptance was not measured"
        )
        notes += fixed(setting, "SGLang")
        return Configuration(shlex.join(words), tuple(notes))
    words += ["--speculative-algorithm", "STANDALONE"]
    words += ["--speculative-draft-model-path", setting.draft]
    words += ["--speculative-num-steps", str(setting.k), "--speculative-eagle-topk", "1"]
    words += ["--speculative-num-draft-tokens", str(setting.k + 1)]
    quant = "fp8" if setting.quant == "fp8" else "unquant"
    words += ["--speculative-draft-model-quantization", quant]
    if setting.quant in BITS:
        notes.append("for such a checkpoint, replace `unquant` by its method, for example `awq`")
    if setting.mode is not DraftingMode.GREEDY:
        notes += other_mode(setting, "SGLang", "greedy")
    notes.append("data-parallel attention does not go together with STANDALONE")
    notes += fixed(setting, "SGLang (`--speculative-adaptive` is for EAGLE only)")
    notes += untranslated(setting, "SGLang")
    unlike = unmapped(setting, "SGLang", ("none", "fp8"))
    return Configuration(shlex.join(words), tuple(notes), unlike)


def llamacpp(setting: Setting, *, renamed: bool) -> Configuration:
    """The llama-server command, with the flags of before or after their renaming."""
    words = ["llama-server", "-m", _gguf(setting.target, setting.target_quant)]
    k, shortest = str(setting.k), str(setting.lookup[0])
    notes = [
        "flags of builds from May 2026 on (pull requests 22397 and 22964)"
        if renamed
        else "flags of builds before their renaming in April 2026 (pull request 22397)",
        *fixed(setting, "llama.cpp"),
    ]
    if setting.draft is None:
        kind = "simple-" if renamed else ""
        words += ["--spec-type", "ngram-simple", f"--spec-ngram-{kind}size-n", shortest]
        words += [f"--spec-ngram-{kind}size-m", k, *([] if renamed else ["--draft-max", k])]
        notes.append(f"llama.cpp looks up n-grams of one length; {shortest} is the run's shortest")
        return Configuration(shlex.join(words), tuple(notes))
    words += ["-md", _gguf(setting.draft, setting.quant)]
    greedy = setting.mode is DraftingMode.GREEDY
    if renamed:
        words += ["--spec-type", "draft-simple", "--spec-draft-n-max", k, "--spec-draft-n-min", "0"]
        sampling = "greedy" if greedy else "probabilistic"
        words += ["--spec-draft-p-min", "0", "--spec-draft-sampling", sampling]
    else:
        words += ["--draft-max", k, "--draft-min", "0", "--draft-p-min", "0"]
        notes += [] if greedy else other_mode(setting, "llama.cpp", "greedy")
    if setting.on_gpu:
        words += ["-ngl", "99", "-ngld", "99"]
    notes.append(
        "convert both models to GGUF where they are not; the nearest types are named, but their "
        "kernels are not the ones that were measured: measure again there"
    )
    if setting.vocabularies:
        difference = abs(setting.vocabularies[0] - setting.vocabularies[1])
        if difference > _LLAMACPP_VOCABULARY:
            notes.append(f"llama.cpp refuses this pair: vocabulary sizes differ by {difference}")
    return Configuration(shlex.join(words), tuple(notes))


def tensorrt_llm(setting: Setting, version: Version) -> Configuration:
    """The YAML of `trtllm-serve TARGET --config`."""
    import yaml

    notes = [
        f"trtllm-serve {shlex.quote(setting.target)} --config THIS_FILE",
        "schema of TensorRT-LLM 1.4.0rc1's documentation",
    ]
    older = version is not None and version < (1, 3)
    lengths = _tensorrt_lengths(setting, older, notes)
    if setting.draft is None:
        own: dict[str, Any] = {"decoding_type": "NGram", **lengths}
        own["max_matching_ngram_size"] = setting.lookup[1]
    else:
        own = {"decoding_type": "DraftTarget", **lengths}
        own["speculative_model_dir" if older else "speculative_model"] = setting.draft
        if setting.mode is not DraftingMode.GREEDY:
            notes += other_mode(setting, "TensorRT-LLM", "greedy")
        notes += untranslated(setting, "TensorRT-LLM")
    fields = {"disable_overlap_scheduler": True, "speculative_config": own}
    unlike = unmapped(setting, "TensorRT-LLM", ("none",))
    text = yaml.safe_dump(fields, sort_keys=False).rstrip("\n")
    return Configuration(text, tuple(notes), unlike)


def _tensorrt_lengths(setting: Setting, older: bool, notes: list[str]) -> dict[str, Any]:
    """The draft length, and the lengths by batch size; adds to `notes`.

    Keys are the largest batch of each length, before 1.3 the smallest (pull request 10860).
    """
    if not setting.schedule:
        return {"max_draft_len": setting.k}
    steps = setting.schedule
    if older and steps[0][2] < setting.longest:
        notes += fixed(setting, "TensorRT-LLM before 1.3 (its schedules only fall, so it)")
        return {"max_draft_len": setting.k}
    if setting.draft is not None and any(k == 0 for _, _, k in steps):
        notes.append(
            "TensorRT-LLM's DraftTarget drafts one token where the schedule says 0: serve such "
            "loads from an instance without a draft"
        )
    schedule = {(first if older else last): k for first, last, k in steps}
    return {"max_draft_len": setting.longest, "draft_len_schedule": schedule}


def transformers(setting: Setting, version: Version) -> Configuration:
    """A Python snippet; k is set on the draft, whose defaults would change it from round to round.

    Raises:
        UsageError: a version before the confidence threshold.
    """
    if version is not None and version < (4, 45):
        raise too_old("transformers", "4.45", "`assistant_confidence_threshold`")
    notes = ["written for transformers 5.x; one request at a time, batches are not supported"]
    notes += fixed(setting, "transformers")
    loading = 'dtype="auto", device_map="cuda"' if setting.on_gpu else 'dtype="auto"'
    lines = _loaded_target(setting, loading)
    if setting.draft is None:
        lookup = f"prompt_lookup_num_tokens={setting.k}, max_matching_ngram_size="
        call = f"{lookup}{setting.lookup[1]}"
    else:
        call = "assistant_model=draft"
        lines += _loaded_draft(setting, loading)
        if setting.mode is not DraftingMode.SAMPLED:
            notes += other_mode(setting, "transformers", "sampled")
        if sizes_differ(setting):
            lines.append(f"drafts_own = AutoTokenizer.from_pretrained({setting.draft!r})")
            call += ", tokenizer=tokenizer, assistant_tokenizer=drafts_own"
            notes.append(
                "the vocabularies have {} and {} entries: transformers takes them for different "
                "ones and translates through text".format(*setting.vocabularies or ())
            )
    lines += [
        'inputs = tokenizer("Once upon a time", return_tensors="pt").to(target.device)',
        f"output = target.generate(**inputs, {call})",
    ]
    unlike = unmapped(setting, "transformers", ("none",))
    return Configuration("\n".join(lines), tuple(notes), unlike)


def _loaded_target(setting: Setting, loading: str) -> list[str]:
    return [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({setting.target!r})",
        f"target = AutoModelForCausalLM.from_pretrained({setting.target!r}, {loading})",
    ]


def _loaded_draft(setting: Setting, loading: str) -> list[str]:
    return [
        f"draft = AutoModelForCausalLM.from_pretrained({setting.draft!r}, {loading})",
        f"draft.generation_config.num_assistant_tokens = {setting.k}",
        'draft.generation_config.num_assistant_tokens_schedule = "constant"',
        "draft.generation_config.assistant_confidence_threshold = 0.0",
    ]


def _gguf(name: str, quant: str) -> str:
    """A GGUF file as it is, or what a converted model would be called."""
    if name.endswith(".gguf"):
        return name
    level = {"int4": "Q4_K_M", "int8": "Q8_0", "fp8": "Q8_0"}.get(quant, "BF16")
    return f"{PurePath(name.partition('@')[0]).name}-{level}.gguf"

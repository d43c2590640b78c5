"""A setting → the configuration with which an engine serves it.

k has many names: `num_speculative_tokens` of vLLM, `n-max` of llama.cpp, `max_draft_len` of
TensorRT-LLM and `num_assistant_tokens` of transformers are k; `num_steps` of SGLang is k and its
`num_draft_tokens` k + 1.
"""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from draftbench.engines.commands import (
    STARTED,
    Speculation,
    check_method,
    llama_cpp_flags,
    sglang_flags,
    tensorrt_llm_fields,
    vllm_fields,
)
from draftbench.errors import UsageError, did_you_mean
from draftbench.export import versions
from draftbench.export.setting import Setting
from draftbench.export.versions import Version, too_old, version_of
from draftbench.models.engine_names import engine_called
from draftbench.models.engine_rules import (
    ENGINE_RULES,
    EngineRules,
    llama_cpp_draft,
    llama_cpp_lengths,
    llama_cpp_lookup,
    refusal_by_size,
    sglang_draft,
    sglang_lookup,
    shorter_context,
    tensorrt_llm_draft,
    tensorrt_llm_lookup,
    too_short,
    transformers_draft,
    vllm_draft,
    vllm_lookup,
)
from draftbench.records import DraftingMode

_BITS = {"int8": 8, "int4": 4}
# int4 has a scale and an offset for 32 weights, as Q4_1; Q4_K_M is 6-bit in parts.
_GGUF = {"int4": "Q4_1", "int8": "Q8_0", "fp8": "Q8_0"}
# What plays back a measured acceptance; SGLang its mean alone.
_SYNTHETIC = ("vllm", "llama.cpp", "sglang")
# What SGLang sets --max-running-requests to as soon as it speculates.
_SGLANG_REQUESTS = 48
_COMMENT = textwrap.TextWrapper(
    100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
)


@dataclass(frozen=True)
class EngineConfiguration:
    """What to paste, and what its user must do, most urgent first, and may want to know. `command`
    starts the engine with the text in a file, FILE, where the text is no command or program itself.
    """

    text: str
    command: str | None
    to_do: tuple[str, ...]
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
    command: str | None = None
    to_do: Sequence[str] = ()


def known_engine(name: str) -> str:
    """The engine as `ENGINE_RULES` spells it.

    Raises:
        UsageError: it is not known, or serves no draft model.
    """
    known = ", ".join(ENGINE_RULES)
    if name == "tgi":
        raise UsageError(
            "TGI serves no draft model; its `--speculate K` looks up n-grams",
            hint=f"use one of {known}",
        )
    engine = engine_called(name)
    if engine not in ENGINE_RULES:
        raise UsageError(
            f"unknown engine `{name}`",
            hint=f"{did_you_mean(engine, ENGINE_RULES, '')} the engines are {known}".strip(),
        )
    return engine


def configure(setting: Setting, engine: str, version: str | None = None) -> EngineConfiguration:
    """What `engine` in `version` (default: the newest known) accepts.

    Raises:
        UsageError: an engine or a version that cannot serve this, or that is not known.
    """
    engine = known_engine(engine)
    rules, number = ENGINE_RULES[engine], version_of(engine, version)
    sizes, contexts = setting.vocabularies, setting.contexts
    if sizes and (refusal := refusal_by_size(rules, *sizes)):
        raise UsageError(
            f"{rules.name} refuses this pair: {refusal}",
            hint="`draftbench check` says which engines take it",
        )
    if setting.survival and engine not in _SYNTHETIC:
        raise UsageError(
            f"{rules.name} plays back no measured acceptance",
            hint=f"--synthetic is for {', '.join(_SYNTHETIC)}",
        )
    if setting.drafting is not None:
        _check_drafting(setting.drafting, setting.engine, engine)
    writers = {
        "vllm": _vllm,
        "sglang": _sglang,
        "llama.cpp": _llamacpp,
        "tensorrt-llm": _tensorrt_llm,
        "transformers": _transformers,
    }
    written = writers[engine](setting, number)
    name = rules.name if version in (None, *versions.RENAMING) else f"{rules.name} {version}"
    differences = list(setting.differences)
    if setting.draft is not None and rules.levels and setting.quant not in rules.levels:
        form = f"{_BITS[setting.quant]}-bit" if setting.quant in _BITS else setting.quant
        differences.append(
            f"the run measured this draft at {setting.quant}, quantized while loading, by kernels "
            f"that {rules.name} does not have: make a {form} checkpoint of it (llm-compressor, "
            "GPTQ or AWQ), name it with --draft and measure it; an unquantized draft is not the "
            "one recommended"
        )
    to_do = [*differences, *_of_gguf(setting, rules)]
    if rules.sampling is not None:
        to_do.append(f"{_to_send(setting)}; otherwise {rules.sampling}")
    if setting.schedule and not written.scheduled:
        steps = ", ".join(
            f"{k} at {first if first == last else f'{first}–{last}'}"
            for first, last, k in setting.schedule
        )
        to_do.append(
            f"{name} takes one draft length, here k = {setting.k}; the best by concurrent "
            f"requests: {steps}. --concurrency N exports the best for N"
        )
    if setting.target_quant != "none":
        to_do.append(f"serve the target at {setting.target_quant}, as it was measured")
    pinned = (setting.target, setting.target_revision), (setting.draft, setting.draft_revision)
    given = {"llama.cpp": 0, "tensorrt-llm": 1}.get(engine, 2)  # to so many of the two
    to_do += [
        f"serve `{spec}@{revision}`, the revision that was measured"
        for spec, revision in pinned[given:]
        if revision
    ]
    if contexts and (cut := shorter_context(rules, *contexts)):
        to_do.append(f"{rules.name}: {cut}")
    if setting.sampled and written.mode not in (None, setting.mode):
        to_do.append(
            f"{name} drafts in the mode `{written.mode}`, and the run measured `{setting.mode}`: "
            "above temperature 0 acceptance will differ, so measure again there"
        )
    to_do += [*written.to_do, *_of_paths(setting)]
    text = written.text
    if engine != "vllm":  # JSON, alone of the formats, has no comments
        text = "\n".join([*map(_COMMENT.fill, differences), text])
    return EngineConfiguration(
        text, written.command, tuple(to_do), (*written.notes, *setting.notes)
    )


def _of_gguf(setting: Setting, rules: EngineRules) -> Iterator[str]:
    """Files that the engine does not take, or hardly."""
    models = {"--target": setting.target, "--draft": setting.draft or ""}
    files = {flag: name for flag, name in models.items() if name.endswith(".gguf")}
    if files and rules.gguf:
        names = " and ".join(f"`{name}`" for name in files.values())
        was = "was" if len(files) == 1 else "were"
        yield (
            f"{rules.name} {rules.gguf}: give the checkpoint that {names} {was} made from with "
            f"{' and '.join(files)}"
        )


def _of_paths(setting: Setting) -> Iterator[str]:
    """Paths of the run that only the machine that measured is known to have."""
    models = {"--target": setting.target, "--draft": setting.draft or ""}
    local = {
        flag: name
        for flag, name in models.items()
        if flag not in setting.given
        and (name in (".", "..") or name.startswith(("~", "/", "./", "../")))
    }
    if local:
        names = " and ".join(f"`{name}`" for name in local.values())
        paths = "are paths" if len(local) > 1 else "is a path"
        flags = " and ".join(local)
        yield f"{names} {paths} on the machine that measured: give the server's with {flags}"


def _match(setting: Setting, *, first: bool) -> str:
    """Which match an engine's prompt lookup takes, beside the one that the run's took."""
    takes, took = ("first" if each else "last" for each in (first, setting.first_match))
    same = "as was measured" if takes == took else f"the run measured the {took}"
    return f"takes the {takes} match in the prompt, {same}"


def _check_drafting(drafts: Speculation, measured_on: str | None, engine: str) -> None:
    """Raise an error where an engine cannot draft with what only another ran."""
    name = ENGINE_RULES[engine].name
    if drafts.raw is not None and engine != measured_on:
        raise UsageError(
            f"spec:FILE.json is written for {measured_on}: it cannot be exported for {name}",
            hint=f"use --engine {measured_on}, or sweep on {name}",
        )
    if engine not in STARTED:
        raise UsageError(
            f"{name} is not known to draft by `{drafts.method}`",
            hint=f"the run measured it on {measured_on}: use --engine {measured_on}",
        )
    check_method(engine, drafts)


def _to_send(setting: Setting) -> str:
    """What requests must say to be sampled as they were measured."""
    if setting.mixed:
        return "send every request's temperature, top-k, top-p and min-p, as measured"
    asked = setting.sampling
    if asked.temperature == 0:
        return "send temperature 0 with every request, as measured"
    cuts = (("top-k", asked.top_k), ("top-p", asked.top_p), ("min-p", asked.min_p))
    words = [f"no {name}" if value is None else f"{name} {value:g}" for name, value in cuts]
    sent = ", ".join([f"temperature {asked.temperature:g}", *words])
    return f"send {sent} with every request, as measured"


def _vllm(setting: Setting, version: Version) -> _Written:
    """The JSON of `--speculative-config`."""
    words = ["vllm", "serve", setting.target]
    if setting.target_revision:
        words += ["--revision", setting.target_revision]
    command = f'{shlex.join(words)} --speculative-config "$(cat FILE)"'
    notes, to_do = [ENGINE_RULES["vllm"].form], []
    lengths: dict[str, object] = {"num_speculative_tokens": setting.k}
    scheduled = bool(setting.schedule) and version >= versions.VLLM_SCHEDULE
    if scheduled:
        lengths = {
            "num_speculative_tokens": setting.longest,
            "num_speculative_tokens_per_batch_size": [list(step) for step in setting.schedule],
        }
        notes += _vllm_schedule(setting, version)
        if setting.draft and not setting.sizes and version >= versions.VLLM_DRAFT_RUNNER:
            to_do.append(
                f"set VLLM_USE_V2_MODEL_RUNNER=0: vLLM's default runner (0.31 to 0.33) drafts "
                f"{setting.longest} tokens at every load and verifies only the schedule's"
            )
    if setting.survival:
        if version < versions.VLLM_RATES:
            raise too_old("vLLM", "0.21", "acceptance by position to play back")
        lengths["rejection_sample_method"] = "synthetic"
        lengths["synthetic_acceptance_rates"] = list(setting.survival)
    if setting.drafting is not None:
        fields = vllm_fields(setting.drafting) | lengths
        return _Written(json.dumps(fields), notes, None, scheduled, command, to_do)
    if setting.draft is not None:
        fields = {**vllm_draft(setting.draft, translated=bool(setting.sizes)), **lengths}
        more, mode = _vllm_draft(setting, version, fields)
        return _Written(json.dumps(fields), [*notes, *more], mode, scheduled, command, to_do)
    if version < versions.VLLM_NGRAM:
        raise too_old("vLLM", "0.10", "n-gram configurations of this form")
    shortest, longest = setting.lookup
    fields = vllm_lookup(longest, shortest, **lengths)
    match = f"vLLM before 0.32 {_match(setting, first=True)}"
    if version >= versions.VLLM_NGRAM_RUNNER:
        match = (
            f"vLLM's default runner {_match(setting, first=False)}; before 0.32, and with "
            "VLLM_USE_V2_MODEL_RUNNER=0, it is the first"
        )
    return _Written(json.dumps(fields), [*notes, match], None, scheduled, command)


def _vllm_draft(
    setting: Setting, version: Version, fields: dict[str, object]
) -> tuple[list[str], DraftingMode]:
    """Adds the fields of a draft model: what to know of them, and the mode that vLLM drafts in."""
    if version < versions.VLLM_DRAFT:
        raise too_old("vLLM", "0.15", "draft models on its current engine")
    greedy = setting.mode is DraftingMode.GREEDY
    if setting.sizes and not (greedy and version >= versions.VLLM_VOCABULARIES):
        raise UsageError(
            f"vLLM refuses this pair: its vocabularies have {setting.sizes} entries",
            hint="from 0.25 it maps them where the draft is greedy; sweep with --mode greedy",
        )
    notes = []
    if setting.draft_revision:
        fields["revision"] = setting.draft_revision
    if setting.quant == "fp8":
        # One scale a row, as was measured; "fp8" is one for the whole matrix.
        by_row = version >= versions.VLLM_PER_CHANNEL
        fields["quantization"] = "fp8_per_channel" if by_row else "fp8"
        if not by_row:
            notes.append(
                "fp8 has one scale a matrix in vLLM before 0.24, and one a row in the run: its "
                "acceptance may differ"
            )
    mode = DraftingMode.GREEDY
    if version >= versions.VLLM_SAMPLING:
        fields["draft_sample_method"] = "greedy" if greedy else "probabilistic"
        mode = mode if greedy else DraftingMode.SAMPLED_TEMPERATURE_ONLY
    if setting.sizes:
        notes.append(
            f"the vocabularies have {setting.sizes} entries: vLLM drafts only tokens that are in "
            "both, and only on its older runner"
        )
    elif version >= versions.VLLM_DRAFT_RUNNER:
        notes.append(
            "vLLM's default runner (0.31 to 0.33) runs a draft model without CUDA graphs, so that "
            "a small draft costs more than was measured here"
        )
    return notes, mode


def _vllm_schedule(setting: Setting, version: Version) -> list[str]:
    """What vLLM makes of draft lengths by load."""
    parallel = "under data parallelism vLLM ignores the schedule: `num_speculative_tokens` holds"
    if version < versions.VLLM_PARALLEL:
        parallel = "under data parallelism vLLM before 0.26 may hang with a schedule"
    last = setting.schedule[-1][1]
    notes = [f"beyond {last} requests vLLM keeps the last draft length", parallel]
    if any(k == 0 for _, _, k in setting.schedule):
        notes.append(
            "where the schedule drafts nothing, measure vLLM with and without it: 0.27 was slower "
            "with it by 7% at 2 requests and 22% at 189 (gemma-4-31B, older runner; pull request "
            "52087)"
        )
    return notes


def _sglang(setting: Setting, version: Version) -> _Written:
    """The launch command."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", setting.target]
    if setting.survival:  # the target's token counts
        words.insert(0, f"SGLANG_SIMULATE_ACC_LEN={1 + sum(setting.survival):.4g}")
    if setting.target_revision:
        words += ["--revision", setting.target_revision]
    if setting.load > _SGLANG_REQUESTS:
        words += ["--max-running-requests", str(setting.load)]
    notes, to_do = [ENGINE_RULES["sglang"].form], []
    if setting.drafting is not None:
        return _Written(shlex.join([*words, *sglang_flags(setting.drafting)]), notes, None)
    if setting.draft is None:
        words += sglang_lookup(setting.k)
        notes.append(
            "SGLang looks up n-grams in the texts of all requests, and the run in those of one: "
            "measure acceptance there"
        )
        return _Written(shlex.join(words), notes, None)
    words += sglang_draft(setting.draft, setting.quant, setting.k)
    if setting.draft_revision:
        words += ["--speculative-draft-model-revision", setting.draft_revision]
    if setting.quant in _BITS:
        to_do.append(
            "with that checkpoint write its method, for example `awq`, in place of `unquant`"
        )
    notes.append("STANDALONE does not work with data-parallel attention")
    if setting.schedule:
        notes.append("`--speculative-adaptive` changes the draft length of EAGLE only")
    return _Written(shlex.join(words), notes, DraftingMode.GREEDY, to_do=to_do)


def _llamacpp(setting: Setting, version: Version) -> _Written:
    """The llama-server command, with the flags of its build."""
    renamed = version >= (versions.NEW_BUILD, 0)
    words = ["llama-server", "-m", _gguf(setting.target, setting.target_quant)]
    k, shortest = str(setting.k), setting.lookup[0]
    older = "flags of builds before their renaming in April 2026 (pull request 22397)"
    notes, to_do = [ENGINE_RULES["llama.cpp"].form if renamed else older], []
    more = ["-np", str(setting.load), "--metrics"]  # 4 without -np
    notes.append("--metrics counts the rounds that `draftbench gate --server` judges")
    if setting.survival:
        if version < (versions.RATES_BUILD, 0):
            raise too_old("llama.cpp", f"b{versions.RATES_BUILD}", "acceptance to play back")
        more += ["--spec-synth-rates", ",".join(map(str, setting.survival))]
        notes.append(
            f"builds before b{versions.RATES_BUILD} may not start with --spec-synth-rates (pull "
            "request 27711, August 2026; b10644 does not)"
        )
    if setting.load > 1:
        to_do.append(
            f"add -c N with {setting.load} times a request's tokens, or --kv-unified: "
            f"-np {setting.load} divides the context among as many requests"
        )
    if setting.drafting is not None:
        if not renamed:
            raise too_old("llama.cpp", f"b{versions.NEW_BUILD}", "flags as the run started it with")
        words += [*llama_cpp_flags(setting.drafting), *more]
        words += ["-ngl", "99", "-ngld", "99"] if setting.on_gpu else []
        return _Written(shlex.join(words), notes, None, to_do=to_do)
    if setting.draft is None:
        lookup = llama_cpp_lookup(shortest, setting.k)
        if not renamed:
            lookup = [word.replace("-simple-size", "-size") for word in lookup]
        words += [*lookup, *([] if renamed else ["--draft-max", k])]
        other = f"; it {_match(setting, first=False)}" if setting.first_match else ""
        notes.append(
            f"llama.cpp looks up n-grams of one length: {shortest} tokens, the shortest of the "
            f"run{other}"
        )
        if setting.k < shortest:
            to_do.append(f"{too_short(shortest)}: with k = {setting.k} it drafts nothing")
        return _Written(shlex.join([*words, *more]), notes, None, to_do=to_do)
    file, mode = _gguf(setting.draft, setting.quant), DraftingMode.GREEDY
    if renamed:
        words += [*llama_cpp_draft(file), *llama_cpp_lengths(setting.k)]
    else:
        words += ["-md", file, "--draft-max", k, "--draft-min", "0", "--draft-p-min", "0"]
    if setting.mode is not DraftingMode.GREEDY and version >= (versions.SAMPLING_BUILD, 0):
        # It reads temperature and seed of a request, not top-k or top-p.
        words += ["--spec-draft-sampling", "probabilistic"]
        mode = DraftingMode.SAMPLED_TEMPERATURE_ONLY
        notes.append(
            f"builds before b{versions.SAMPLING_BUILD} (October 2026) do not start with "
            "--spec-draft-sampling: --engine-version after-rename writes for them"
        )
    words += [*more, *(["-ngl", "99", "-ngld", "99"] if setting.on_gpu else [])]
    if not setting.target.endswith(".gguf") or not setting.draft.endswith(".gguf"):
        to_do.append(
            "convert the models to GGUF files of these names; other kernels were measured, so "
            "measure again: `draftbench sweep --engine llama.cpp`"
        )
    if "int4" in (setting.quant, setting.target_quant):
        notes.append(
            "nearest to int4 is `llama-quantize --pure --output-tensor-type q4_1 IN OUT Q4_1`"
        )
    return _Written(shlex.join(words), notes, mode, to_do=to_do)


def _tensorrt_llm(setting: Setting, version: Version) -> _Written:
    """The YAML of `trtllm-serve TARGET --config`."""
    import yaml

    command = f"trtllm-serve {shlex.quote(setting.target)} --config FILE"
    notes, to_do = [ENGINE_RULES["tensorrt-llm"].form], []
    older, steps = version < (1, 3), setting.schedule
    # `max_draft_len` must be the length of the smallest batch, and is the longest.
    scheduled = bool(steps) and steps[0][2] == setting.longest
    lengths: dict[str, object] = {"max_draft_len": setting.k}
    if scheduled:
        # Keys are the largest batch of each length, before 1.3 the smallest (pull request 10860).
        schedule = {(first if older else last): k for first, last, k in steps}
        lengths = {"max_draft_len": setting.longest, "draft_len_schedule": schedule}
        if setting.draft is not None and any(k == 0 for _, _, k in steps):
            to_do.append(
                "serve loads with k = 0 from an instance without a draft: TensorRT-LLM's "
                "Draft_Target drafts one token there"
            )
        if not older:
            least = "nothing" if setting.draft is None else "one token"
            notes.append(f"beyond {steps[-1][1]} requests TensorRT-LLM drafts {least}")
    document: dict[str, object] = {}
    if setting.target_revision:
        document["revision"] = setting.target_revision
    if setting.drafting is not None:
        if older:
            raise too_old("TensorRT-LLM", "1.3", "fields as the run started it with")
        document["speculative_config"] = tensorrt_llm_fields(setting.drafting) | (
            lengths if scheduled else {}
        )
        text = yaml.safe_dump(document, sort_keys=False).rstrip("\n")
        return _Written(text, notes, None, scheduled, command, to_do)
    if older or setting.draft is None:  # a draft model is part of the target's graph from 1.3 on
        document["disable_overlap_scheduler"] = True
    mode = None
    if setting.draft is None:
        fields = tensorrt_llm_lookup(setting.lookup[1], **lengths)
        notes.append(
            "TensorRT-LLM looks up n-grams down to one token, the run down to "
            f"{setting.lookup[0]}; it {_match(setting, first=False)}"
        )
    else:
        mode = DraftingMode.GREEDY
        fields = tensorrt_llm_draft(setting.draft, **lengths)
        if older:
            fields["decoding_type"] = "DraftTarget"
            fields["speculative_model_dir"] = fields.pop("speculative_model")
        elif setting.mode is not DraftingMode.GREEDY:
            mode = DraftingMode.SAMPLED
            fields["use_rejection_sampling"] = True
            notes.append(
                "use_rejection_sampling (July 2026, pull request 15775) needs FlashInfer, and "
                "works with neither guided decoding nor context parallelism"
            )
        if setting.sizes:
            to_do.append(
                f"run `draftbench check`: the vocabularies have {setting.sizes} entries, and "
                "TensorRT-LLM does not check that their ids agree"
            )
    document["speculative_config"] = fields
    text = yaml.safe_dump(document, sort_keys=False).rstrip("\n")
    return _Written(text, notes, mode, scheduled, command, to_do)


def _transformers(setting: Setting, version: Version) -> _Written:
    """A Python snippet; k is set on the draft, whose defaults would change it from round to
    round.
    """
    if version < (4, 45):
        raise too_old("transformers", "4.45", "`assistant_confidence_threshold`")
    notes = [ENGINE_RULES["transformers"].form]
    loading = 'dtype="auto", device_map="cuda"' if setting.on_gpu else 'dtype="auto"'
    target = _from_pretrained(setting.target, setting.target_revision)
    draft = _from_pretrained(setting.draft or "", setting.draft_revision)
    lines = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({target})",
        f"target = AutoModelForCausalLM.from_pretrained({target}, {loading})",
    ]
    if setting.draft is None:
        lookup = f"prompt_lookup_num_tokens={setting.k}, max_matching_ngram_size="
        arguments = f"{lookup}{setting.lookup[1]}"
        notes.append(
            "transformers looks up n-grams down to one token, the run down to "
            f"{setting.lookup[0]}; it {_match(setting, first=True)}"
        )
    else:
        lines += [
            f"draft = AutoModelForCausalLM.from_pretrained({draft}, {loading})",
            f"draft.generation_config.num_assistant_tokens = {setting.k}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
        ]
        arguments = transformers_draft(two_tokenizers=setting.sizes is not None)
        if setting.sizes:
            lines.append(f"draft_tokenizer = AutoTokenizer.from_pretrained({draft})")
            notes.append(
                f"the vocabularies have {setting.sizes} entries: transformers treats them "
                "as different and translates through text"
            )
    lines += [
        # What is not written here, the checkpoint's generation_config decides.
        f"settings = {{{', '.join(_generation(setting))}}}",
        'inputs = tokenizer("Once upon a time", return_tensors="pt").to(target.device)',
        f"output = target.generate(**inputs, **settings, {arguments})",
    ]
    to_do = ["set each request's sampling: the most frequent is written"] if setting.mixed else []
    mode = None if setting.draft is None else DraftingMode.SAMPLED
    return _Written("\n".join(lines), notes, mode, to_do=to_do)


def _from_pretrained(name: str, revision: str | None) -> str:
    """The arguments that load a model; of a .gguf file transformers takes folder and name apart."""
    folder, _, file = name.rpartition("/")
    if file.endswith(".gguf"):
        return f"{folder or '.'!r}, gguf_file={file!r}"
    return f"{name!r}, revision={revision!r}" if revision else repr(name)


def _generation(setting: Setting) -> list[str]:
    """The sampling and the length of the traffic, as keys and values of Python."""
    asked = setting.sampling
    found: dict[str, object] = {"do_sample": asked.temperature > 0}
    if asked.temperature > 0:
        found["temperature"] = asked.temperature
        found["top_k"] = asked.top_k or 0
        found["top_p"] = 1.0 if asked.top_p is None else asked.top_p
        found["min_p"] = asked.min_p or 0.0
    found |= {"repetition_penalty": 1.0, "max_new_tokens": setting.limit}
    return [f'"{name}": {value!r}' for name, value in found.items()]


def _gguf(name: str, quant: str) -> str:
    """A GGUF file as it is, or what a converted model would be called."""
    if name.endswith(".gguf"):
        return name
    return f"{PurePath(name.partition('@')[0]).name}-{_GGUF.get(quant, 'BF16')}.gguf"

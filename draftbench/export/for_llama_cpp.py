"""llama.cpp: the llama-server command, with the flags of its build. k is its `n-max`."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from draftbench.errors import UsageError
from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import NEWEST, Version, WriterResult, other_lookup, too_old
from draftbench.hub import short_name
from draftbench.memory import level_of
from draftbench.models.drafting import CONVERT_HEAD, Speculation, llama_cpp_flags, too_short
from draftbench.records import DraftingMode

# Builds: the last known with the old flags, the first known with the new ones, with
# --spec-synth-rates, and with --spec-draft-sampling.
_OLD_BUILD, _NEW_BUILD, _RATES_BUILD, _SAMPLING_BUILD = 8877, 9626, 10649, 11368
_CONVERT = (
    "convert the {}; other kernels were measured, so measure again: `draftbench sweep --engine "
    "llama.cpp`"
)
RENAMING = {"before-rename": (0, 0), "after-rename": (_NEW_BUILD, 0)}


def build_of(text: str | None) -> Version:
    """A build such as b11368 as a version; the newest if none is given.

    Raises:
        UsageError: that build's flags are not known.
    """
    if text is None:
        return NEWEST
    build = re.fullmatch(r"b(\d{1,9})", text)
    number = int(build[1]) if build else -1
    if 0 <= number <= _OLD_BUILD or number >= _NEW_BUILD:
        return number, 0
    if text not in RENAMING:
        raise UsageError(
            f"llama.cpp's flags are not known for `{text}`",
            hint=f"give --engine-version {' or '.join(RENAMING)} (until April 2026, from May on), "
            "or a build like b11368",
        )
    return RENAMING[text]


def write(plan: ServePlan, version: Version) -> WriterResult:
    """The command for one build.

    Raises:
        UsageError: this build cannot draft like this.
    """
    build, _ = version
    renamed = build >= _NEW_BUILD
    differences, to_do = list[str](), list[str]()
    if plan.speculation.stacked:
        plan = _of_stack(plan, build, differences)
    words = ["llama-server", "-m", _file(plan.target, plan.target_quant, "target")]
    more = ["-np", str(plan.concurrency), "--metrics"]  # 4 without -np
    if plan.survival:
        if build < _RATES_BUILD:
            raise too_old("llama.cpp", f"b{_RATES_BUILD}", "acceptance to play back")
        more += ["--spec-synth-rates", ",".join(map(str, plan.survival))]
    if plan.concurrency > 1:
        to_do.append(
            f"add -c N with {plan.concurrency} times a request's tokens, or --kv-unified: "
            f"-np {plan.concurrency} divides the context among as many requests"
        )
    if plan.on_gpu and plan.method != "ngram":
        more += ["-ngl", "99", "-ngld", "99"]
    speculation, mode = plan.speculation, None
    if plan.method == "ngram" or plan.speculation.stacked:
        _of_lookup(plan, to_do)
    if plan.method == "ngram":
        if not plan.target.endswith(".gguf"):
            to_do.append(_CONVERT.format("model to a GGUF file of this name"))
    elif plan.method == "draft-model":
        speculation, mode = _of_draft_model(plan, build, to_do)
    elif not renamed:
        raise too_old("llama.cpp", f"b{_NEW_BUILD}", "flags as the run started it with")
    elif plan.draft:
        speculation = replace(speculation, model=_file(plan.draft, plan.quant, "head"))
        if speculation.model != plan.draft:
            to_do.append(f"{CONVERT_HEAD} makes the head's GGUF file")
        if not plan.target.endswith(".gguf"):
            to_do.append(_CONVERT.format("target to a GGUF file of this name"))
    flags = llama_cpp_flags(speculation)
    if not renamed:
        flags = _as_before_renaming(flags, plan)
    return WriterResult(
        shlex.join([*words, *flags, *more]), mode, differences=differences, to_do=to_do
    )


def _of_stack(plan: ServePlan, build: int, differences: list[str]) -> ServePlan:
    """How llama.cpp drafts with a stack; with the draft alone if a lookup could find nothing."""
    if plan.k < plan.lookup.shortest:
        differences.append(f"the draft alone, as {too_short(plan.lookup.shortest)}")
        return replace(plan, speculation=replace(plan.speculation, stacked=False))
    if build < _NEW_BUILD:
        raise too_old("llama.cpp", f"b{_NEW_BUILD}", "prompt lookup before a draft")
    if plan.method != "draft-model" and plan.engine != "llama.cpp":
        differences.append(
            "behind prompt lookup llama.cpp accepts a little less of a head than the run says"
        )
    return plan


def _of_lookup(plan: ServePlan, to_do: list[str]) -> None:
    longest, shortest = plan.lookup
    lengths = ""
    if longest > shortest and plan.engine != "llama.cpp":
        lengths = f"looks up n-grams of {shortest} tokens alone, the run of up to {longest}"
    to_do += other_lookup(plan, "llama.cpp", lengths=lengths)
    if plan.k < shortest:
        to_do.append(f"{too_short(shortest)}: with k = {plan.k} it drafts nothing")


def _of_draft_model(
    plan: ServePlan, build: int, to_do: list[str]
) -> tuple[Speculation, DraftingMode]:
    """How llama.cpp drafts with the draft's file, and in which mode."""
    draft = plan.draft or ""
    mode = DraftingMode.GREEDY
    # When llama.cpp samples drafts, it uses a request's temperature and seed, not top-k or top-p.
    if plan.mode is not DraftingMode.GREEDY and build >= _SAMPLING_BUILD:
        mode = DraftingMode.SAMPLED_TEMPERATURE_ONLY
        to_do.append(
            "measure acceptance there: it draws from the draft's ten best tokens only, so fewer "
            "are accepted than in the run"
        )
        to_do.append(
            f"builds before b{_SAMPLING_BUILD} (October 2026) do not start with "
            "--spec-draft-sampling: --engine-version after-rename writes for them"
        )
    if not plan.target.endswith(".gguf") or not draft.endswith(".gguf"):
        to_do.append(_CONVERT.format("models to GGUF files of these names"))
    for quant in dict.fromkeys((plan.quant, plan.target_quant)):
        if arguments := level_of(quant).llama_quantize:
            to_do.append(f"nearest to {quant} is `llama-quantize {arguments}`")
    file = _file(draft, plan.quant, "draft")
    return replace(plan.speculation, model=file, mode=mode), mode


def _as_before_renaming(flags: list[str], plan: ServePlan) -> list[str]:
    """The flags of builds up to April 2026."""
    k = str(plan.k)
    if plan.method == "ngram":
        return [*(word.replace("-simple-size", "-size") for word in flags), "--draft-max", k]
    return [*flags[:2], "--draft-max", k, "--draft-min", "0", "--draft-p-min", "0"]


def _file(name: str, quant: str, side: str) -> str:
    """A .gguf file's path unchanged, or the name that a converted model would have."""
    if name.endswith(".gguf"):
        return name
    stem = short_name(name).strip(".") or side
    return f"{stem}-{level_of(quant).gguf}.gguf"

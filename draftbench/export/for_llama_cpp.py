"""llama.cpp: the llama-server command, with the flags of its build. k is its `n-max`."""

from __future__ import annotations

import shlex
from dataclasses import replace

from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import Version, WriterResult, other_lookup, too_old
from draftbench.hub import short_name
from draftbench.memory import level_of
from draftbench.models.drafting import CONVERT_HEAD, llama_cpp_flags
from draftbench.models.engine_rules import too_short
from draftbench.records import DraftingMode

# Builds: the first known with today's flags, with --spec-synth-rates, and with
# --spec-draft-sampling.
_OLDEST, _RATES, _SAMPLING = (9626, 0), (10649, 0), (11368, 0)


def write(plan: ServePlan, version: Version) -> WriterResult:
    """The command for one build.

    Raises:
        UsageError: this build cannot draft like this.
    """
    if version < _OLDEST:
        raise too_old("llama.cpp", "b9626", "flags that draftbench knows")
    how = speculation = plan.speculation
    mode: DraftingMode | None = None
    (longest, shortest), concurrency = how.lookup, plan.concurrency
    differences, to_do = list[str](), list[str]()
    if speculation.stacked and how.k < shortest:  # prompt lookup could find nothing
        differences.append(f"the draft alone, as {too_short('llama.cpp', shortest)}")
        speculation = replace(speculation, stacked=False)
    elif speculation.stacked and how.method != "draft-model" and plan.engine != "llama.cpp":
        differences.append(
            "behind prompt lookup llama.cpp accepts a little less of a head than the run says"
        )
    if how.method == "ngram" or speculation.stacked:
        if longest > shortest:
            to_do += other_lookup(plan, "llama.cpp", f"looks up n-grams of {shortest} tokens alone")
        if how.k < shortest:
            to_do.append(f"{too_short('llama.cpp', shortest)}: with k = {how.k} it drafts nothing")
    if concurrency > 1:
        to_do.append(
            f"add -c N with {concurrency} times a request's tokens, or --kv-unified: "
            f"-np {concurrency} divides the context among as many requests"
        )
    target = _file(plan.target, plan.target_quant, "target")
    converted = [plan.target] if target != plan.target else []
    if plan.draft is not None:
        head = how.method != "draft-model"
        file = _file(plan.draft, how.quant, "head" if head else "draft")
        speculation = replace(speculation, model=file)
        if file != plan.draft and head:
            to_do.append(f"{CONVERT_HEAD} makes the head's GGUF file")
        elif file != plan.draft:
            converted.append(plan.draft)
    if how.method == "draft-model":
        mode = DraftingMode.GREEDY
        # When llama.cpp samples drafts, it uses a request's temperature and seed, not top-k or
        # top-p.
        if how.mode is not mode and version >= _SAMPLING:
            mode = DraftingMode.SAMPLED_TEMPERATURE_ONLY
            to_do.append(
                "measure acceptance there: it draws from the draft's ten best tokens only, so "
                "fewer are accepted than in the run; builds before b11368 do not start with "
                "--spec-draft-sampling, and --engine-version b9626 writes for them"
            )
        speculation = replace(speculation, mode=mode)
        for quant in dict.fromkeys((how.quant, plan.target_quant)):
            if arguments := level_of(quant).llama_quantize:
                to_do.append(f"nearest to {quant} is `llama-quantize {arguments}`")
    if converted:
        to_do.append(
            f"convert {' and '.join(f'`{model}`' for model in converted)} to GGUF files of these "
            "names; other kernels were measured, so measure again: `draftbench sweep --engine "
            "llama.cpp`"
        )
    words = ["llama-server", "-m", target, *llama_cpp_flags(speculation)]
    words += ["-np", str(concurrency), "--metrics"]  # 4 without -np
    if plan.survival:
        if version < _RATES:
            raise too_old("llama.cpp", "b10649", "acceptance to play back")
        words += ["--spec-synth-rates", ",".join(map(str, plan.survival))]
    if plan.on_gpu and how.method != "ngram":
        words += ["-ngl", "99", "-ngld", "99"]
    return WriterResult(shlex.join(words), mode, differences=differences, to_do=to_do)


def _file(name: str, quant: str, side: str) -> str:
    """A .gguf file's path unchanged, or the name that a converted model would have."""
    if name.endswith(".gguf"):
        return name
    stem = short_name(name).strip(".") or side
    return f"{stem}-{level_of(quant).gguf}.gguf"

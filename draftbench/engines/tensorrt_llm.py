"""TensorRT-LLM, for which `export` writes; draftbench neither starts nor asks it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from draftbench.drafts.kind import Method
from draftbench.drafts.speculation import Speculation
from draftbench.engines.engine import Engine, ServePlan, Source, Version, Written
from draftbench.engines.pair_rules import UNCHECKED
from draftbench.records import DraftingMode

_KINDS = {"draft-model": "Draft_Target", "eagle3": "Eagle3", "dflash": "DFlash"}


def speculative_config(speculation: Speculation) -> dict[str, Any]:
    """The fields of TensorRT-LLM's `speculative_config`. By default its prompt lookup takes the
    oldest match in the texts of all requests.
    """
    length = {"max_draft_len": speculation.k}
    if speculation.method == "mtp":
        return {"decoding_type": "MTP", **length}
    if speculation.method == "ngram":
        longest = speculation.lookup.longest
        fields = {"decoding_type": "NGram", **length, "max_matching_ngram_size": longest}
        return {**fields, "is_public_pool": False, "is_use_oldest": False}
    kind = _KINDS[speculation.method]
    fields = {"decoding_type": kind, **length, "speculative_model": speculation.model}
    if speculation.mode is not DraftingMode.GREEDY:
        fields["use_rejection_sampling"] = True
    return fields


def _write(plan: ServePlan, version: Version) -> Written:
    """The YAML of `trtllm-serve TARGET --config` for one version; k is its `max_draft_len`.
    Raises: UsageError, this version cannot draft like this.
    """
    import yaml

    to_do, steps, how = list[str](), plan.schedule, plan.speculation
    if version < (1, 3):
        raise TENSORRT_LLM.too_old("1.3", "fields that draftbench knows")
    # `max_draft_len` is the longest length, and must be that of the smallest batch.
    scheduled = bool(steps) and steps[0][2] == plan.longest
    fields = speculative_config(plan.speculation_at(plan.longest if scheduled else how.k))
    model = fields.pop("speculative_model", None)
    if scheduled:  # keys are the largest batch for each length
        fields["draft_len_schedule"] = {last: k for _, last, k in steps}
    if model is not None:
        fields["speculative_model"] = plan.draft
    mode, document = None, dict[str, object]()
    if plan.target_revision:
        document["revision"] = plan.target_revision
    if how.method == "ngram":
        document["disable_overlap_scheduler"] = True
        if how.lookup.shortest > 1:
            to_do += TENSORRT_LLM.other_lookup(plan, "looks up n-grams down to one token")
    elif how.kind.is_model:
        drawn = "use_rejection_sampling" in fields
        mode = DraftingMode.SAMPLED if drawn else DraftingMode.GREEDY
        if plan.translated:
            to_do.append(
                "run `draftbench check`: the vocabularies differ, and "
                "TensorRT-LLM does not check that their ids agree"
            )
    document["speculative_config"] = fields
    text = yaml.safe_dump(document, sort_keys=False).rstrip("\n")
    command = f"trtllm-serve {shlex.quote(plan.target)} --config FILE"
    return Written(text, mode, scheduled, command, to_do)


def _misreads(method: Method, raw: Mapping[str, Any], layers: list[int], usual: list[int]) -> str:
    """How it uses a head differently from its training."""
    if method != "dflash":
        return ""
    if "speculators_model_type" in raw:
        return "is known to read block drafters in their authors' format alone"
    return f"sorts the layers that a head reads: {layers}" if layers != sorted(layers) else ""


TENSORRT_LLM = Engine(
    key="tensorrt-llm",
    name="TensorRT-LLM",
    methods=("draft-model", "ngram", "eagle3", "mtp", "dflash"),
    option=lambda how: (
        "speculative_config: {"
        + ", ".join(f"{name}: {value}" for name, value in speculative_config(how).items())
        + "}"
    ),
    # It refuses another draft length than the block of the configuration.
    own_dspark=lambda k: (
        "speculative_config: {decoding_type: DSpark, max_draft_len: BLOCK, "
        "speculative_model: TARGET}"
    ),
    misreads=_misreads,
    # It compares nothing; its guide warns of very low acceptance with another tokenizer.
    rules=(
        ("other_tokenizer", "accepts", f"it compares no tokens; {UNCHECKED}"),
        ("always", "accepts", "same tokenizer"),
    ),
    form="written for TensorRT-LLM 1.3.0rc27 (llm_args.py at 00043967)",
    write=_write,
    pins=("target",),
    sources=(
        Source("Draft_Target, NGram and their fields", "00043967 llmapi/llm_args.py", ""),
        Source("draft_len_schedule", "00043967 llmapi/llm_args.py", ""),
        Source("revision, of the target alone", "0066b2a56 llmapi/llm_utils.py", ""),
        Source("n-grams of every length", "024997657 _torch/speculative/ngram.py", ""),
        Source("no comparison of vocabularies", "speculative-decoding.md of 1.4.0rc1", ""),
        Source("MTP", "00043967 llmapi/llm_args.py", ""),
        Source("DFlashDecodingConfig", "reference of llmapi, 1.3.0rc27 and 1.4.0rc1", ""),
        Source("DSparkDecodingConfig", "reference of llmapi, 1.3.0rc27 and 1.4.0rc4", ""),
    ),
)

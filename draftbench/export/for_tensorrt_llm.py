"""TensorRT-LLM: the YAML of `trtllm-serve TARGET --config`. k is its `max_draft_len`."""

from __future__ import annotations

import shlex

from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import (
    Version,
    WriterResult,
    down_to_one,
    other_lookup,
    too_old,
)
from draftbench.models.drafting import tensorrt_llm_fields
from draftbench.records import DraftingMode


def write(plan: ServePlan, version: Version) -> WriterResult:
    """The configuration for one version.

    Raises:
        UsageError: this version cannot draft like this.
    """
    import yaml

    to_do: list[str] = []
    older, steps = version < (1, 3), plan.schedule
    if older and plan.method not in ("draft-model", "ngram"):
        raise too_old("TensorRT-LLM", "1.3", "fields as the run started it with")
    # `max_draft_len` is the longest length, and must be that of the smallest batch.
    scheduled = bool(steps) and steps[0][2] == plan.longest
    fields = tensorrt_llm_fields(plan.speculation_at(plan.longest if scheduled else plan.k))
    model = fields.pop("speculative_model", None)
    if scheduled:
        # Keys are the largest batch for each length; before 1.3, the smallest (pull request 10860).
        fields["draft_len_schedule"] = {(first if older else last): k for first, last, k in steps}
        if model is not None and any(k == 0 for _, _, k in steps):
            to_do.append(
                "serve loads with k = 0 from an instance without a draft: TensorRT-LLM's "
                "Draft_Target drafts one token there"
            )
    if model is not None:
        fields["speculative_model"] = plan.draft
    mode = None
    if plan.method == "ngram":
        to_do += other_lookup(plan, "TensorRT-LLM", lengths=down_to_one(plan))
    elif plan.method == "draft-model":
        mode = DraftingMode.GREEDY
        if older:
            fields["decoding_type"] = "DraftTarget"
            fields["speculative_model_dir"] = fields.pop("speculative_model")
            fields.pop("use_rejection_sampling", None)
        elif "use_rejection_sampling" in fields:
            mode = DraftingMode.SAMPLED
            to_do.append(
                "use_rejection_sampling (July 2026, pull request 15775) needs FlashInfer, and "
                "works with neither guided decoding nor context parallelism"
            )
        if plan.translated:
            to_do.append(
                "run `draftbench check`: the vocabularies differ, and "
                "TensorRT-LLM does not check that their ids agree"
            )
    document: dict[str, object] = {}
    if plan.target_revision:
        document["revision"] = plan.target_revision
    # From 1.3 on a draft model is part of the target's graph.
    if older or plan.method == "ngram":
        document["disable_overlap_scheduler"] = True
    document["speculative_config"] = fields
    text = yaml.safe_dump(document, sort_keys=False).rstrip("\n")
    command = f"trtllm-serve {shlex.quote(plan.target)} --config FILE"
    return WriterResult(text, mode, scheduled, command, to_do)

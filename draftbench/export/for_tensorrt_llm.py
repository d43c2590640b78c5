"""TensorRT-LLM: the YAML of `trtllm-serve TARGET --config`. k is its `max_draft_len`."""

from __future__ import annotations

import shlex

from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import (
    Version,
    WriterResult,
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

    to_do, steps, how = list[str](), plan.schedule, plan.speculation
    if version < (1, 3):
        raise too_old("TensorRT-LLM", "1.3", "fields that draftbench knows")
    # `max_draft_len` is the longest length, and must be that of the smallest batch.
    scheduled = bool(steps) and steps[0][2] == plan.longest
    fields = tensorrt_llm_fields(plan.speculation_at(plan.longest if scheduled else how.k))
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
            to_do += other_lookup(plan, "tensorrt-llm", "looks up n-grams down to one token")
    elif how.method == "draft-model":
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
    return WriterResult(text, mode, scheduled, command, to_do)

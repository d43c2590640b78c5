"""SGLang: its launch command. k is its `num_steps`; `num_draft_tokens` is k + 1."""

from __future__ import annotations

import shlex

from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import Version, WriterResult, other_lookup
from draftbench.models.drafting import sglang_flags
from draftbench.models.engine_rules import ENGINE_RULES
from draftbench.records import DraftingMode


def write(plan: ServePlan, version: Version) -> WriterResult:
    """The command, the same for every version."""
    how = plan.speculation
    words = ["python", "-m", "sglang.launch_server", "--model-path", plan.target]
    if plan.survival:  # the length includes the target's token
        words.insert(0, f"SGLANG_SIMULATE_ACC_LEN={1 + sum(plan.survival):.4g}")
    if plan.target_revision:
        words += ["--revision", plan.target_revision]
    if plan.concurrency > ENGINE_RULES["sglang"].requests:
        words += ["--max-running-requests", str(plan.concurrency)]
    words += sglang_flags(plan.speculation)
    to_do, mode = [], DraftingMode.GREEDY if how.method == "draft-model" else None
    if how.method == "ngram":
        to_do = other_lookup(plan, "sglang", "looks up n-grams in the texts of all requests")
    return WriterResult(shlex.join(words), mode, to_do=to_do)

"""SGLang: its launch command. k is its `num_steps`; `num_draft_tokens` is k + 1."""

from __future__ import annotations

import shlex

from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import Version, WriterResult
from draftbench.memory import level_of
from draftbench.models.drafting import sglang_flags
from draftbench.models.engine_rules import ENGINE_RULES
from draftbench.records import DraftingMode


def write(plan: ServePlan, version: Version) -> WriterResult:
    """The command, the same for every version."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", plan.target]
    if plan.survival:  # the length includes the target's token
        words.insert(0, f"SGLANG_SIMULATE_ACC_LEN={1 + sum(plan.survival):.4g}")
    if plan.target_revision:
        words += ["--revision", plan.target_revision]
    if plan.concurrency > ENGINE_RULES["sglang"].requests:
        words += ["--max-running-requests", str(plan.concurrency)]
    words += sglang_flags(plan.speculation)
    to_do: list[str] = []
    mode = None
    if plan.method == "ngram":
        to_do.append(
            "SGLang looks up n-grams in the texts of all requests, and the run in those of one: "
            "measure acceptance there"
        )
    elif plan.method == "draft-model":
        mode = DraftingMode.GREEDY
        if (level := level_of(plan.quant)).checkpoint and "sglang" not in level.made_by:
            to_do.append(
                "with that checkpoint write its method, for example `awq`, in place of `unquant`"
            )
    return WriterResult(shlex.join(words), mode, to_do=to_do)

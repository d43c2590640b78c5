"""SGLang: its launch command. k is its `num_steps`; `num_draft_tokens` is k + 1."""

from __future__ import annotations

import shlex

from draftbench.export.setting import Setting
from draftbench.export.written import Version, Written
from draftbench.models.drafting import sglang_flags
from draftbench.models.engine_rules import ENGINE_RULES
from draftbench.models.levels import level_facts, made_by
from draftbench.records import DraftingMode


def write(setting: Setting, version: Version) -> Written:
    """The command, the same for every version."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", setting.target]
    if setting.survival:  # the length includes the target's token
        words.insert(0, f"SGLANG_SIMULATE_ACC_LEN={1 + sum(setting.survival):.4g}")
    if setting.target_revision:
        words += ["--revision", setting.target_revision]
    if setting.load > ENGINE_RULES["sglang"].requests:
        words += ["--max-running-requests", str(setting.load)]
    words += sglang_flags(setting.drafting)
    to_do: list[str] = []
    mode = None
    if setting.method == "ngram":
        to_do.append(
            "SGLang looks up n-grams in the texts of all requests, and the run in those of one: "
            "measure acceptance there"
        )
    elif setting.method == "draft-model":
        mode = DraftingMode.GREEDY
        if level_facts(setting.quant).checkpoint and not made_by("sglang", setting.quant):
            to_do.append(
                "with that checkpoint write its method, for example `awq`, in place of `unquant`"
            )
    return Written(shlex.join(words), mode, to_do=to_do)

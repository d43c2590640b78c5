"""`check` fits one screen; everything is under --all."""

import pytest
from msgspec.structs import replace
from scenes import pair_facts, sheet

from draftbench.models.check_result import (
    CheckResult,
    EngineAnswer,
    LevelRow,
    Overlap,
    PairSheet,
    Room,
)
from draftbench.records import Mixture
from draftbench.report.terminal.check import render

LONG = "an-organisation/a-model-with-a-very-long-name-that-goes-on-and-on-Instruct-GPTQ-Int4"
NAMES = ("vLLM", "SGLang", "llama.cpp", "TensorRT-LLM", "transformers")


def pair(name, *, works=True, diff=()):
    rows, share = (100, 1.0) if works else (50, 0.5)
    words = {"draft_rows": rows, "target_rows": 100, "all_tokens": Overlap(share, share)}
    return PairSheet(
        draft=sheet(name),
        facts=pair_facts(target="big", draft=name, template_difference=diff, **words),
        obstacles=() if works else (f"`{name}` cannot draft for `big`: too few tokens",),
        caveats=("the chat templates differ; the target's is used for both",) * works,
        rooms=(Room("none", 40_000_000, 40_000_000, 1000),),
        engines=tuple(
            EngineAnswer(e, "accepts" if works else "refuses", "a reason " * 10, "--an option")
            for e in NAMES
        ),
        works="yes" if works else "no",
    )


def answer(*pairs):
    level = LevelRow("none", "as loaded", "oneDNN", None, "all")
    return CheckResult(sheet("big", layers=8), 16_000_000_000, None, pairs, (level,))


@pytest.mark.parametrize(
    "pairs",
    [
        [pair("small")],
        [pair("small", works=False, diff=("- a", "+ b") * 20)],
        [pair(LONG)],
        [pair("small"), pair("other", works=False)],
        [pair(f"{LONG}-{n}", works=n % 2 == 0) for n in range(30)],
    ],
)
@pytest.mark.parametrize("width", [60, 88, 200])
def test_one_screen_holds_the_verdict_the_differences_and_the_engines(pairs, width):
    lines = render(answer(*pairs), "table", width).splitlines()
    assert len(lines) <= 25
    if width >= 88:
        assert max(map(len, lines)) <= 88
    assert "can" in lines[0]
    assert any("--all" in line for line in lines)


def test_only_what_differs_is_a_row():
    lines = render(answer(pair("small")), "table", 88).splitlines()
    (row,) = [line.split() for line in lines if line.startswith("layers")]
    assert row == ["layers", "×", "width", "8", "×", "64", "2", "×", "64"]
    assert not any(line.startswith("context") for line in lines)


def test_several_drafts_are_a_row_each():
    text = render(answer(pair("small"), pair("other", works=False)), "table", 88)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "1 of 2 drafts can work with big"
    assert "small yes 10 M all all" in lines
    assert "other no 10 M 50.00% none" in lines
    assert "`other` cannot draft for `big`: too few tokens" in lines


def test_several_drafts_may_work_where_only_traffic_tells():
    drafts = pair("small"), replace(pair("other"), works="maybe"), pair("no", works=False)
    lines = [" ".join(x.split()) for x in render(answer(*drafts), "table", 88).splitlines()]
    assert lines[0] == "1 of 3 drafts can work with big, 1 may"
    assert "other maybe 10 M all all" in lines
    alone = render(answer(drafts[1]), "table", 88).splitlines()
    assert alone[0] == "`other` may be able to draft for `big`"


def test_each_caveat_of_several_drafts_says_whose_it_is_and_shared_ones_are_said_once():
    """Known fault: what held for every draft had no name, and stood below another's."""
    of_target = "big reads images too"
    one = replace(pair("small"), caveats=("shared by all", of_target, "alone", "small is int4"))
    others = [
        replace(pair(name), caveats=("shared by all", of_target, "of two")) for name in ("b", "c")
    ]
    lines = render(answer(one, *others), "table", 88).splitlines()
    assert [line.strip() for line in lines if line.startswith("  ")][:5] == [
        "every draft: shared by all", of_target, "small: alone", "small is int4", "b, c: of two",
    ]  # fmt: skip


def test_a_mixture_shows_what_a_step_reads_of_it():
    mixture = Mixture(experts=8, per_token=2, layers=2, parameters=4_000_000)
    small = replace(
        pair("small"), draft=sheet("small", active_parameters=7_000_000, mixture=mixture)
    )
    text = " ".join(render(answer(small), "table", 88).split())
    assert "experts of a token no mixture 2 of 8" in text
    assert "10 M, 7 M active" in render(answer(small), "table", 88, everything=True)
    assert "experts" not in render(answer(pair("b")), "table", 88, everything=True)


def test_everything_has_templates_sizes_memory_and_options():
    pairs = answer(pair("small", diff=("- a", "+ b")))
    for style in ("table", "markdown"):
        short = render(pairs, style, 88)
        whole = render(pairs, style, 88, everything=True)
        for words in ("+ b", "Sizes", "Memory: 16 GB", "Quantization here", "vLLM: --an option"):
            assert words in whole
            assert words not in short


def test_the_second_layout_of_a_cpu_is_part_of_the_memory():
    text = render(answer(pair("small")), "table", 88, everything=True)
    assert "up to 40 MB more: weights are held once more" in " ".join(text.split())
    works = pair("small")
    on_gpu = replace(works, rooms=(Room("none", 40_000_000, 0, 1000),))
    assert "held once more" not in render(answer(on_gpu), "table", 88, everything=True)


def test_no_line_of_a_template_can_end_the_block_of_markdown():
    text = render(answer(pair("a", diff=("```", "<b>"))), "markdown", 88, everything=True)
    assert "\n    ```\n    <b>\n" in text

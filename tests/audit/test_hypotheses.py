"""The table of hypotheses, and the roundings that some of them are."""

import torch
from scenes import ROOT

from draftbench.audit.hypotheses import HYPOTHESES, in_4_bits, in_8_bits, turned
from draftbench.drafts.built_in import WITH_WEIGHTS


def test_eight_bits_keep_a_127th_of_the_largest_of_32():
    values = torch.zeros(1, 64)
    values[0, :3] = torch.tensor([127.0, 1.4, -2.6])
    values[0, 32] = 0.25  # alone in its own 32: kept, as far as float16 keeps a 127th of it
    found = in_8_bits(values)
    assert found[0, :4].tolist() == [127.0, 1.0, -3.0, 0.0]
    assert abs(float(found[0, 32]) - 0.25) < 0.0002


def test_four_bits_keep_eighths_of_the_largest_of_32_which_is_minus_eight():
    values = torch.zeros(1, 32)
    values[0, :5] = torch.tensor([8.0, -8.0, 3.4, -3.6, 0.4])
    # The scale is -1: codes go from -8 to 7, so that -8 becomes -7.
    assert in_4_bits(values)[0, :6].tolist() == [8.0, -7.0, 3.0, -4.0, 0.0, 0.0]
    assert in_4_bits(torch.zeros(1, 32)).tolist() == [[0.0] * 32]


def test_every_row_says_what_where_and_what_to_do_in_words():
    for row in HYPOTHESES.values():
        assert set(row.of) <= set(WITH_WEIGHTS)
        for words in (row.says, row.seen, row.advice):
            assert words
            assert words[-1] not in ".;"


def test_the_page_has_a_row_for_each():
    page = (ROOT / "docs/audit.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    wanted = [f"| `{k}` | {r.says} | {r.seen} | {r.advice} |" for k, r in HYPOTHESES.items()]
    assert rows == wanted


def test_every_kind_that_is_replayed_over_an_engine_has_hypotheses():
    for kind in ("draft-model", "eagle3", "dflash", "dspark"):
        assert sum(kind in row.of for row in HYPOTHESES.values()) >= 10


def test_turning_before_rounding_changes_nothing_but_the_rounding():
    values = torch.arange(128.0).view(1, 128)
    assert torch.allclose(turned(lambda x: x, values), values, atol=1e-4)
    # One value alone is spread over all 64, each an eighth of it: four bits keep all of them.
    alone = torch.zeros(1, 64)
    alone[0, 0] = 8.0
    assert torch.allclose(turned(in_4_bits, alone), alone, atol=0.6)

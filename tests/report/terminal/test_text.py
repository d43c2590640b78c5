"""Text of a terminal: columns, names that are too long, ranges, screens."""

import pytest

from draftbench.report.terminal.text import clipped, columns, plain, ranges, shortened


def test_columns_of_numbers_are_aligned_right():
    text = columns(["name", "k"], [["a", "1"], ["bcdef", "10"]])
    assert text.splitlines() == ["name    k", "a       1", "bcdef  10"]


def test_a_table_without_a_head_has_no_line_for_it():
    assert columns(["", ""], [["a", "b"]]) == "a  b"


def test_a_cell_is_one_line_without_control_characters():
    assert columns(["x"], [["a\nb\x1b[2J"]]).splitlines() == ["x", "a b�[2J"]
    assert plain("a\x9b\u202eb") == "a��b"


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [("abcdefgh", 8, "abcdefgh"), ("abcdefghi", 8, "abcd…ghi"), ("abcdefghi", 7, "abc…ghi")],
)
def test_a_long_name_keeps_both_ends(text, width, short):
    assert shortened(text, width) == short


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((1, 2, 3, 4, 8), "1–4, 8"), ((1, 2), "1, 2"), ((5,), "5"), ((1, 4, 16), "1, 4, 16")],
)
def test_numbers_in_a_row_are_a_range(numbers, text):
    assert ranges(numbers) == text


def test_more_than_a_screen_says_how_much_is_left_out_and_where_it_is():
    lines = clipped("\n".join(map(str, range(30))), "--all").split("\n")
    assert (len(lines), lines[23], lines[24]) == (25, "23", "… 6 more lines: --all")
    assert clipped("a\nb", "--all") == "a\nb"

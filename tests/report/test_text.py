"""Text of a terminal: columns, names that are too long, screens."""

import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.report.text import (
    Section,
    columns,
    csv_text,
    paragraph,
    parameters,
    printable,
    render_sections,
    shortened,
    shown,
)


def test_a_table_without_a_head_has_no_line_for_it():
    assert columns(["", ""], [["a", "b"]]) == "a  b"


def test_figures_are_aligned_right_and_flags_left():
    rows = [("--k", "+0.5", "–"), ("--dtype", "-12", "3 MB")]
    assert columns(("", "a", "b"), rows).splitlines()[1:] == [
        "--k      +0.5     –",
        "--dtype   -12  3 MB",
    ]


def test_a_cell_is_one_line_without_control_characters():
    assert columns(["x"], [["a\nb\x1b[2J"]]).splitlines() == ["x", "a b�[2J"]
    assert printable("a\x9b\u202eb") == "a��b"


def test_a_table_that_is_too_wide_has_its_widest_text_wrapped():
    rows = [["int4", "a copy in 16 bits for passes over several tokens", "0.5"], ["none", "b", "2"]]
    assert Section("Levels", ["level", "kernel", "bytes"], rows).text(44).splitlines() == [
        "Levels",
        "level  kernel                        bytes",
        "int4   a copy in 16 bits for passes    0.5",
        "       over several tokens",
        "none   b                                 2",
    ]


def test_a_table_of_figures_that_is_too_wide_is_split_behind_the_names_of_its_rows():
    half = Estimate(0.5, 0.4, 0.6)
    section = Section("", ["", "draft", "α", "τ", "c"], [["→", "small", half, half, half]], names=2)
    assert section.text(34).splitlines()[1:] == [
        "   draft           α           τ",
        "→  small  0.50 ±0.10  0.50 ±0.10",
        "   draft           c",
        "→  small  0.50 ±0.10",
    ]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        (Estimate(0.5, 0.4, 0.62), "0.50 ±0.11"),
        (Estimate(20.0, 18.0, 21.0), "20.0 ±1.5"),
        ((Estimate(0.5, 0.4, 0.6), "*"), "0.50 (0.40–0.60) *"),
        # Half of it would be below nothing, above all, or far from the longer side.
        (Estimate(2.41, 0.43, 11.78), "2.41 (0.43–11.78)"),
        (Estimate(0.25, 0.0, 0.66), "0.25 (0.00–0.66)"),
        (Estimate(0.97, 0.90, 1.0), "0.97 (0.90–1.00)"),
        (Estimate(1.35, 1.30, 1.60), "1.35 (1.30–1.60)"),
        # Hardly seen.
        (Estimate(0.999, 0.995, 1.0), "1.00 ±0.00"),
        (Estimate(0.20, 0.19, 0.23), "0.20 ±0.02"),
    ],
)
def test_a_figure_has_half_of_its_interval_or_where_that_misleads_its_ends(cell, text):
    assert shown(cell) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (494e6, "494 M"),
        (999_885_952, "1 B"),
        (7.62e9, "7.62 B"),
        (1.026e12, "1.03 T"),
        (5e3, "0.005 M"),
    ],
)
def test_a_number_of_parameters_has_three_digits_and_a_unit(count, text):
    assert parameters(count) == text


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [("abcdefgh", 8, "abcdefgh"), ("abcdefghi", 8, "abcd…ghi"), ("abcdefghi", 7, "abc…ghi")],
)
def test_a_long_name_keeps_both_ends(text, width, short):
    assert shortened(text, width) == short


def test_a_sentence_is_no_wider_than_can_be_read_and_breaks_neither_flags_nor_addresses():
    words = "say --max-new-tokens 4 at https://host/a-page " * 4
    lines = paragraph(words, 300).splitlines()
    assert [len(line) <= 100 for line in lines] == [True, True]
    assert [word for word in " ".join(lines).split() if word not in words.split()] == []
    assert paragraph("https://host/" + "x" * 90, 40) == "https://host/" + "x" * 90


def test_more_than_a_screen_says_how_much_is_left_out_and_where_it_is():
    section = Section("title", code=list(map(str, range(29))))
    lines = render_sections([section], "table", 200, "--all").split("\n")
    assert (len(lines), lines[23], lines[24]) == (25, "    22", "… 6 more lines: --all")
    assert render_sections([Section("a", notes=["b"])], "table", 200, "--all") == "a\n  b"


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1+1", "＝1+1"]
)
def test_no_cell_of_csv_is_a_formula_to_a_spreadsheet(name):
    assert csv_text([name], [[-1.5], [name]]) in (
        f"'{name}\n-1.5\n'{name}",
        f'"\'{name}"\n-1.5\n"\'{name}"',  # a carriage return is quoted
    )

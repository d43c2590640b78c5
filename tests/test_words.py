"""Words that a serving engineer would stumble over stay out of everything a person reads."""

import ast
import re

import pytest
from scenes import ROOT

BANNED = re.compile(
    r"\b(with a watch|plain steps?|left it|hangs? on|what it is of|told|unlike|goes on|go on)\b"
)
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MODULES = sorted((ROOT / "draftbench").rglob("*.py"))


def texts(module):
    """Every string of a module, docstrings included, with its line."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_of_the_documentation_has_no_banned_words(page):
    lines = page.read_text().splitlines()
    assert [f"{at}: {line}" for at, line in enumerate(lines, 1) if BANNED.search(line)] == []


def test_no_text_of_the_package_has_banned_words():
    assert [
        f"{module.relative_to(ROOT)}:{line}: {match[0]}"
        for module in MODULES
        for line, text in texts(module)
        for match in BANNED.finditer(text)
    ] == []

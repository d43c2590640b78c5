"""`draftbench suites`: the built-in traffic → a list. No model runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftbench.cli.flags import (
    TEXT_FORMATS,
    OutputOption,
    TextFormatOption,
    one_of,
)
from draftbench.cli.output import check_output, width, write_result

if TYPE_CHECKING:
    from draftbench.traffic.suites import Suite


def suites(output_format: TextFormatOption = "table", output: OutputOption = "-") -> int:
    """List the built-in traffic. Use it as `--traffic suite:NAME`.

    draftbench suites
    draftbench suites --format json | jq -r '.[].name'
    """
    from draftbench.records import to_json
    from draftbench.report.terminal.text import Section
    from draftbench.traffic.suites import suites as built_in

    one_of("--format", output_format, TEXT_FORMATS)
    check_output(output)
    found = built_in()
    if output_format == "json":
        text = to_json(found)
    elif output_format == "markdown":
        head = ("suite", "title", "requests", "description")
        rows = [(f"suite:{s.name}", s.title, str(s.requests), s.description) for s in found]
        text = Section("Built-in traffic", head, rows).markdown()
    else:
        text = "\n".join(map(_lines, found))
    write_result(text, output)
    return 0


def _lines(suite: Suite) -> str:
    """Its name, and what it holds below."""
    from draftbench.report.terminal.text import paragraph

    words = paragraph(suite.description, width(), "    ").replace("      ", "    ")
    return f"suite:{suite.name}  {suite.title}, {suite.requests} requests\n{words}"

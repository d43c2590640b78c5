"""`draftbench suites`: the built-in traffic → a list. No model runs here."""

from __future__ import annotations

from draftbench.cli.output import TextOutput
from draftbench.report.text import Section
from draftbench.traffic.suites import suites as built_in


def suites(output: TextOutput) -> int:
    """List the built-in traffic. Use it as `--traffic suite:NAME`.

    draftbench suites
    draftbench suites --format json | jq -r '.[].name'
    """
    every = built_in()
    head = ["suite", "requests", "title"]
    rows = [[f"suite:{s.name}", str(s.requests), s.title] for s in every]
    section = Section("Built-in traffic", head, rows, ["Descriptions: --format markdown."])
    if output.style == "markdown":
        rows = [[*row, s.description] for row, s in zip(rows, every, strict=True)]
        section = Section("Built-in traffic", [*head, "description"], rows)
    output.show(every, [section])
    return 0

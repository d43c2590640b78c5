"""`draftbench suites`: the built-in traffic → a list. No model runs here."""

from __future__ import annotations

from draftbench.cli.output import TextOutput


def suites(output: TextOutput) -> int:
    """List the built-in traffic. Use it as `--traffic suite:NAME`.

    draftbench suites
    draftbench suites --format json | jq -r '.[].name'
    """
    from draftbench.records import to_json
    from draftbench.report.terminal.text import Section, columns
    from draftbench.traffic.suites import suites as built_in

    every = built_in()
    if output.style == "json":
        output.write(to_json(every))
        return 0
    head = ("suite", "requests", "title", "description")
    rows = [(f"suite:{s.name}", str(s.requests), s.title, s.description) for s in every]
    if output.style == "markdown":
        output.write(Section("Built-in traffic", head, rows).markdown())
    else:
        table = columns(head[:-1], [row[:-1] for row in rows])
        output.write(f"{table}\nDescriptions: --format markdown")
    return 0

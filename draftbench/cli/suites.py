"""`draftbench suites`: the built-in traffic → a list. No model runs here."""

from __future__ import annotations

from draftbench.cli.output import TextOutput, width


def suites(output: TextOutput) -> int:
    """List the built-in traffic. Use it as `--traffic suite:NAME`.

    draftbench suites
    draftbench suites --format json | jq -r '.[].name'
    """
    from draftbench.records import to_json
    from draftbench.report.terminal.text import Section, paragraph
    from draftbench.traffic.suites import suites as built_in

    found = built_in()
    if output.style == "json":
        output.write(to_json(found))
    elif output.style == "markdown":
        head = ("suite", "title", "requests", "description")
        rows = [(f"suite:{s.name}", s.title, str(s.requests), s.description) for s in found]
        output.write(Section("Built-in traffic", head, rows).markdown())
    else:
        lines = []
        for suite in found:
            words = paragraph(suite.description, width(), "    ").replace("      ", "    ")
            lines += [f"suite:{suite.name}  {suite.title}, {suite.requests} requests", words]
        output.write("\n".join(lines))
    return 0

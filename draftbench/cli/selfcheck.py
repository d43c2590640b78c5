"""`draftbench selfcheck`: what works on this machine's device, by trying it."""

from __future__ import annotations

from draftbench.cli.flags import traffic_query
from draftbench.cli.output import note, write_result
from draftbench.errors import UsageError
from draftbench.flags import flag

_SIGNS = {True: "works", False: "FAILS", None: "–"}


def selfcheck(
    *,
    device: str | None = flag(
        None,
        "The device to try: cpu, cuda or cuda:1 (default: a GPU if there is one).",
        "DEVICE",
    ),
) -> int:
    """Test what a sweep needs on a device: versions, CUDA graphs, quantization levels and a small
    sweep. Exits 1 if something fails.

    draftbench selfcheck --device cuda
    """
    from draftbench.cli.progress import TerminalWatcher
    from draftbench.decoder.device import device_of
    from draftbench.sweep.device_check import check_device

    chosen = device_of(device)
    if chosen == "auto":
        raise UsageError("selfcheck tries one device", hint="--device cpu, cuda or cuda:1")
    note(f"trying {chosen}; this takes a minute")
    findings = []
    watcher = TerminalWatcher(quiet=True)
    for finding in check_device(chosen, traffic_query("suite:completion", 2), watcher):
        findings.append(finding)
        write_result(f"{_SIGNS[finding.works]:6} {finding.what}: {finding.found}")
    failed = [finding.what for finding in findings if finding.works is False]
    untried = [finding.what for finding in findings if finding.works is None]
    where = next(finding.found for finding in findings if finding.what == "device")
    versions = next(finding.found for finding in findings if finding.what == "versions")
    write_result(
        f"\nFor a report: {where}; {versions}; fails: {'; '.join(failed) or 'nothing'}; not tried: "
        f"{'; '.join(untried) or 'nothing'}"
    )
    return 1 if failed else 0

"""A JSON document with a `schema_version` → refused where a newer draftbench wrote it."""

from __future__ import annotations

import msgspec

from draftbench.errors import RunFolderError


def refuse_newer(raw: bytes, known: int, where: str) -> None:
    """Look at the version alone, since nothing else of a newer layout can be known.

    Raises:
        RunFolderError: `where` has a schema after `known`.
        msgspec.DecodeError: no JSON object.
        RecursionError: nested too deeply.
    """
    version = msgspec.json.decode(raw, type=dict[str, object]).get("schema_version")
    if isinstance(version, int) and version > known:
        raise RunFolderError(
            f"{where} has schema {version}, newer than this draftbench reads ({known})",
            hint="update draftbench",
        )

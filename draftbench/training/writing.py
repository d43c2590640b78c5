"""What fails while a training writes: one error, which can be resumed from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from draftbench.run_folder.append_log import cannot_write


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Where files are written to a folder, with libraries that have errors of their own for a full
    disk.

    Raises:
        RunFolderError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error) from error
    except (RuntimeError, SafetensorError) as error:  # PyTorch, safetensors
        refused = OSError(None, str(error).partition("\n")[0])
        raise cannot_write(folder, refused) from refused

import pytest
from scenes import manifest

from draftbench.run_folder.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    """A new run folder."""
    return RunFolder.create(tmp_path / "run", manifest())

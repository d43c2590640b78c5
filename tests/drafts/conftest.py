"""The models that `measure` and `models` are tested with too."""

from measure.conftest import draft, make, target, text, text_source  # noqa: F401
from models.conftest import workshop  # noqa: F401

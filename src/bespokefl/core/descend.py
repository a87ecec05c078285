"""Former name of `bespokefl.core.local_sgd`."""

import warnings
from typing import Any

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.rows import Rows

warnings.warn("bespokefl.core.descend is now bespokefl.core.local_sgd", FutureWarning, stacklevel=2)


def descend(*args: Any, beside: Any = (), **options: Any) -> Rows:
    """Call `local_sgd`, whose argument `per_row` was called `beside`."""
    return local_sgd(*args, **{"per_row": beside} | options)

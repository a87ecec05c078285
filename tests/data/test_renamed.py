"""Old names of modules work and warn."""

import pytest

from bespokefl import data


@pytest.mark.parametrize(("old", "new"), [("folder", "tables.client_directories"), ("hugging", "sources.hugging_face")])
def test_old_names_warn(old: str, new: str) -> None:
    with pytest.warns(FutureWarning, match=f"bespokefl.data.{old} is now bespokefl.data.{new}"):
        assert getattr(data, old).__name__ == f"bespokefl.data.{new}"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = data.nothing

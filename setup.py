"""The description of the package: README with links to the repository, because PyPI shows no other files.

Everything else about the package is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
text = (ROOT / "README.md").read_text(encoding="utf-8")
text = re.sub(r"!\[([^\]]*)\]\((?!https?:)", rf"![\1]({source}/raw/main/", text)
text = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)", rf"[\1]({source}/blob/main/", text)
setup(long_description=text, long_description_content_type="text/markdown")

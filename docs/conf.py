"""Sphinx configuration: `make docs` builds the documentation into build/site. No page needs another server."""

import dataclasses
import json
import re
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import command_line  # noqa: E402

project = "Bespoke"
author = "The Bespoke contributors"
copyright = author
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
suppress_warnings = ["ref.python"]  # words such as "shape" in the types of parameters may name several attributes
default_role = "code"  # docstrings put names into single backticks

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings have the types
napoleon_google_docstring = False
napoleon_use_rtype = False

linkcheck_timeout = 20  # seconds, of make docs-links

html_theme = "furo"
html_title = f"Bespoke {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"
html_show_search_summary = False  # summaries are fetched, which browsers refuse for files

# Files of the repository that are pages of the site, too. The page in docs/ is a link for readers of the repository.
PAGES = {"architecture": "ARCHITECTURE.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
PAGE_OF = {file: page for page, file in PAGES.items()}
FILES = "|".join(PAGE_OF)


def read_source(app, page, source):
    """Convert notebooks to Markdown, and take the content of some pages from files outside of docs/."""
    text = source[0]
    if app.env.doc2path(page).suffix == ".ipynb":
        text = notebook(json.loads(text), Path(page).name)
    if page in PAGES:
        text = (ROOT / PAGES[page]).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text)
        text = re.sub(rf"\]\(({FILES})", lambda link: f"]({PAGE_OF[link[1]]}.md", text)
    if page == "command-line":
        text = re.sub(r"<!-- commands.*-->", lambda _: command_line.page(), text)
    up = "../" * page.count("/")
    text = re.sub(rf"\]\((?:\.\./)+({FILES})", lambda link: f"]({up}{PAGE_OF[link[1]]}.md", text)
    text = re.sub(
        r"\[([^\]]*)\]\((?:(?:\.\./)+(?:evidence/|README\.md)[^)]*|LICENSE)\)", r"\1", text
    )  # files that are no pages
    source[0] = text


def notebook(content, name):
    """Return a notebook as Markdown: its texts, code, and printed output."""
    parts = []
    for cell in content["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        output = "".join("".join(one["text"]) for one in cell["outputs"])
        if output:
            parts.append(f"```{{code-block}} text\n:class: output\n\n{output}\n```")
    parts.insert(1, f"{{download}}`Download this page as a notebook <{name}.ipynb>`")
    return "\n\n".join(parts) + "\n"


def inline_math(writer, node):
    writer.body.append(f'<span class="math">{mathml(node, block=False)}</span>')
    raise nodes.SkipNode


def block_math(writer, node):
    writer.body.append(f'<div class="math">{mathml(node, block=True)}</div>')
    raise nodes.SkipNode


def mathml(node, block):
    """Return an equation as MathML, which browsers show without a script."""
    try:
        return latex2mathml.tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        raise ValueError(f"equation {node.astext()!r}: {error}") from None


def class_signature(app, what, name, obj, options, signature, annotation):
    """Show a method with its hyper-parameters, which its constructor takes as **hyper."""
    if what == "class" and name.startswith("bespokefl.methods."):
        fields = [f"{one.name}={one.default!r}" for one in dataclasses.fields(obj)]
        return f"({', '.join(['*', *fields])})", annotation
    return None


def skip_member(app, what, name, obj, skip, options):
    """Leave out how a method implements the interface, which is documented once."""
    module = getattr(getattr(obj, "fget", obj), "__module__", None) or ""
    return True if what == "class" and module.startswith("bespokefl.methods.") else None


def list_modules(app, what, name, obj, options, lines):
    """Turn the lines "name   what it is" of a package's docstring into a list."""
    if what == "module":
        lines[:] = [re.sub(r"^(\w+) {2,}(?=\S)", r"- `\1`: ", line) for line in lines]
        lines[:] = [re.sub(r"^ {10,}", "  ", line) for line in lines]


def setup(app):
    app.connect("source-read", read_source)
    app.connect("autodoc-process-signature", class_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", list_modules)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))

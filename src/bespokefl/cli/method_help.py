"""What a method's own file says about it: its hyper-parameters, what each means, and the paper."""

import ast
import inspect
import io
import re
import textwrap
import tokenize
from typing import Any

from bespokefl.core.method import Method

LONGEST = 24


def hyper(method: type[Method]) -> list[tuple[str, Any, str]]:
    """Name, default and meaning (the comment beside it) of each hyper-parameter."""
    comments: dict[str, str] = {}
    for kind in reversed(method.__mro__):
        if kind is not object:
            comments |= _comments(kind)
    return [(name, value, comments.get(name, "")) for name, value in method().hyper().items()]


def _comments(kind: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # a class made in an interpreter has no file
        return {}
    beside = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = beside.get(node.end_lineno or node.lineno, "")
            if text:
                found[node.target.id] = text
    return found


def reference(method: type[Method]) -> str:
    """The paper in a few words: "Li et al., ICML 2021"."""
    found = dict(re.findall(r"(\w+)\s*=\s*\{(.*?)\},?\s*$", method.citation, re.DOTALL | re.MULTILINE))
    authors = [one.partition(",")[0].strip() for one in re.split(r"\s+and\s+", found.get("author", "")) if one.strip()]
    if not authors:
        return ""
    who = authors[0] + (" et al." if len(authors) > 2 else f" and {authors[1]}" if len(authors) == 2 else "")
    where = next((found[kind] for kind in ("booktitle", "journal", "school") if kind in found), "")
    place = f"{where} " if len(where) <= LONGEST else ""  # some journals' names fill a line
    return f"{who}, {place}{found.get('year', '')}".strip()


def page(method: type[Method]) -> str:
    """The docstring of the method's file: what it does, the paper, the objective, what differs."""
    module = inspect.getmodule(method)
    return inspect.cleandoc((module.__doc__ if module else None) or method.__doc__ or "")

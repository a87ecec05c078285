"""Write the reference of the command line from the commands themselves; conf.py puts it into command-line.md."""

import re

import typer

from bespokefl.cli import app


def page():
    """Return a section for every command: what it does, its usage, arguments and options."""
    root = typer.main.get_command(app)
    return "\n\n".join(sections(root, "bespoke", None))


def sections(command, name, parent):
    context = command.context_class(command, info_name=name.split()[-1], parent=parent)
    members = {key: one for key, one in getattr(command, "commands", {}).items() if not one.hidden}
    if parent is not None:
        pieces = " ".join(command.collect_usage_pieces(context))
        yield f"{'#' * len(name.split())} {name}\n\n{text(command.help)}\n\n```text\n{name} {pieces}\n```"
    rows = [row for one in command.params if (row := described(one, context, parent is None))]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])
    for key, one in members.items():
        yield from sections(one, f"{name} {key}", context)


def described(parameter, context, is_root):
    """Return the line of an argument or option; "" for --help, which is described once, and for hidden ones."""
    record = parameter.get_help_record(context)
    if record is None or ("--help" in parameter.opts and not is_root):
        return ""
    names, meaning = (" ".join(re.sub(r"\x1b\[[\d;]*m", "", one).split()) for one in record)
    return f"| `{cell(names)}` | {cell(meaning)} |"


def text(help):
    """Return a docstring as Markdown: paragraphs, with single line breaks removed."""
    paragraphs = re.split(r"\n\s*\n", (help or "").replace("\b", "").strip())
    lines = [" ".join(one.split()) for one in paragraphs]
    return "\n\n".join(f"```text\n{one}\n```" if one.startswith("bespoke ") else escaped(one) for one in lines)


def cell(value):
    return escaped(value.replace("\\[", "[")).replace("|", "\\|")


def escaped(value):
    return re.sub(r"([<*_$])(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"\\\1", value)

"""Checks of the sizes that a model is built with."""

from bespokefl.core.errors import InputError


def whole(name: str, value: object) -> None:
    """Refuse what is no whole number from 1."""
    if type(value) is not int or value < 1:
        raise InputError(f"{name} must be a whole number >= 1, got {value!r}")


def documents(name: str, shape: tuple[int, ...], tokens: object) -> None:
    """Refuse examples that are no text."""
    if tokens is None or len(shape) != 1:
        what = f"examples of shape {tuple(shape)}"
        raise InputError(f"{name} needs text, numbers of words of shape (length,), got {what} that are none; use mlp")
    whole("tokens", tokens)

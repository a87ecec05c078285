"""Text as numbers: words between white space, in lower case, each with its number.

Number 0 fills the end of a short document, 1 stands for every word that is not in the vocabulary, and the words
themselves begin at 2.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from bespokefl.core.errors import InputError

PADDING, UNKNOWN, FIRST = 0, 1, 2
LONGEST = 512  # words of a document that are read at all
SIZE = 10_000  # words in a vocabulary, unless asked otherwise
SHARE = 0.95  # of the training documents that fit into the length, unless that is given


def words(document: str) -> list[str]:
    """Its words in lower case."""
    return document.lower().split()


def all_words(documents: Iterable[str]) -> tuple[str, ...]:
    """Every word, in the order of its first appearance."""
    found: dict[str, None] = {}
    for document in documents:
        found.update(dict.fromkeys(words(document)[:LONGEST]))
    return tuple(found)


def longest(documents: Iterable[str]) -> int:
    """How many words the longest document has, from 1 to LONGEST."""
    return min(LONGEST, max((len(words(document)) for document in documents), default=1)) or 1


def encode(documents: Sequence[str], vocabulary: Sequence[str], length: int) -> np.ndarray:
    """Numbers of the words, (documents, length); what is longer is cut."""
    number = {word: at for at, word in enumerate(vocabulary, FIRST)}
    x = np.full((len(documents), length), PADDING, dtype=np.int64)
    for row, document in zip(x, documents, strict=True):
        own = words(document)[:length]
        row[: len(own)] = [number.get(word, UNKNOWN) for word in own]
    return x


def frequent(counts: np.ndarray, vocabulary: Sequence[str], size: int) -> tuple[str, ...]:
    """The most frequent words, equally frequent ones by the alphabet; `counts` are by number."""
    if size < 1:
        raise InputError(f"vocabulary must be at least 1 word, got {size}")
    seen = [(-int(count), word) for count, word in zip(counts[FIRST:], vocabulary, strict=True) if count]
    return tuple(word for _, word in sorted(seen)[:size])


def renumbered(old: Sequence[str], new: Sequence[str]) -> np.ndarray:
    """For each number in the old vocabulary the one in the new."""
    number = {word: at for at, word in enumerate(new, FIRST)}
    return np.array([PADDING, UNKNOWN, *(number.get(word, UNKNOWN) for word in old)], dtype=np.int64)


def fitting_length(x: np.ndarray) -> int:
    """A length that SHARE of these documents fit into; at least 1."""
    lengths = np.sort((x != PADDING).sum(1))
    return max(1, int(lengths[max(0, int(np.ceil(SHARE * len(lengths))) - 1)])) if len(lengths) else 1


def cut(x: np.ndarray, length: int) -> np.ndarray:
    """Documents of this length, cut or filled at the end."""
    wide = np.full((len(x), length), PADDING, dtype=np.int64)
    shown = min(length, x.shape[1])
    wide[:, :shown] = x[:, :shown]
    return wide

"""Text as numbers: words are separated by white space and lower-cased, and each has an id.

Id 0 pads short documents, 1 stands for every word outside the vocabulary, and the words of the vocabulary start at 2.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from bespokefl.core.errors import InputError, spell

PADDING, UNKNOWN, FIRST = 0, 1, 2
MAX_LENGTH = 512  # words of a document that are read
DEFAULT_VOCABULARY = 10_000  # words
COVERED_SHARE = 0.95  # of the training documents that fit into the default length


def words(document: str) -> list[str]:
    """The words of a document in lower case."""
    return document.lower().split()


def all_words(documents: Iterable[str]) -> tuple[str, ...]:
    """Every word, in the order of its first appearance."""
    found: dict[str, None] = {}
    for document in documents:
        found.update(dict.fromkeys(words(document)[:MAX_LENGTH]))
    return tuple(found)


def longest(documents: Iterable[str]) -> int:
    """The number of words of the longest document, from 1 to MAX_LENGTH."""
    return min(MAX_LENGTH, max((len(words(document)) for document in documents), default=1)) or 1


def encode(documents: Sequence[str], vocabulary: Sequence[str], length: int) -> np.ndarray:
    """The word ids as (documents, length); longer documents are cut."""
    ids = {word: id_ for id_, word in enumerate(vocabulary, FIRST)}
    x = np.full((len(documents), length), PADDING, dtype=np.int64)
    for row, document in zip(x, documents, strict=True):
        known = words(document)[:length]
        row[: len(known)] = [ids.get(word, UNKNOWN) for word in known]
    return x


def most_frequent(counts: np.ndarray, vocabulary: Sequence[str], size: int) -> tuple[str, ...]:
    """The most frequent words, ties in alphabetical order; `counts` are by id."""
    if size < 1:
        raise InputError(f"{spell('vocabulary')} must be at least 1 word, got {size}")
    seen = [(-int(count), word) for count, word in zip(counts[FIRST:], vocabulary, strict=True) if count]
    return tuple(word for _, word in sorted(seen)[:size])


def id_map(old: Sequence[str], new: Sequence[str]) -> np.ndarray:
    """The id in the new vocabulary for each id in the old one."""
    ids = {word: id_ for id_, word in enumerate(new, FIRST)}
    return np.array([PADDING, UNKNOWN, *(ids.get(word, UNKNOWN) for word in old)], dtype=np.int64)


def default_length(x: np.ndarray) -> int:
    """The smallest length that COVERED_SHARE of these documents fit into; at least 1."""
    lengths = np.sort((x != PADDING).sum(1))
    return max(1, int(lengths[max(0, int(np.ceil(COVERED_SHARE * len(lengths))) - 1)])) if len(lengths) else 1


def pad_or_cut(x: np.ndarray, length: int) -> np.ndarray:
    """Documents of this length, cut or padded at the end."""
    return np.pad(x[:, :length], ((0, 0), (0, max(0, length - x.shape[1]))), constant_values=PADDING)

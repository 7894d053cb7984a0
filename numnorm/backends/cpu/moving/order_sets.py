"""Sets of ranks: bits in words, with summaries and counts above them.

Level 0 of a set has a bit for each rank. A bit of each level above says whether a word of the level
below has any, and beside each word of these stands how many ranks it is for. So the neighbours of a
rank, and the k-th rank, are found in a few steps for each level of 64 words.

A set is a tuple: the words of all levels, these counts, where each level begins, and how many
levels there are.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.simd.vector import compiled_as, load_scalar

WORD_BITS = 6
WORD = 1 << WORD_BITS
LAST = WORD - 1
# More levels than memory has room for.
LEVELS_MOST = 8
_ALL = (1 << WORD) - 1


def _bits(name: str, flags: int) -> Any:
    """Return what generates a call of an LLVM function of one word, with so many flags."""

    def generate(context: Any, builder: Any, word: Any) -> Any:
        kind, flag = word.type, ir.IntType(1)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind] + [flag] * flags), f"llvm.{name}.i64"
        )
        return builder.call(function, [word] + [flag(1)] * flags)

    return generate


_ctpop, _cttz, _ctlz = _bits("ctpop", 0), _bits("cttz", 1), _bits("ctlz", 1)


def _plain_ones(word: Any) -> int:
    return (int(word) & _ALL).bit_count()


@compiled_as(_plain_ones)
def ones(typing_context, word):
    """Return how many bits a word has."""

    def generate(context, builder, signature, arguments):
        return _ctpop(context, builder, arguments[0])

    return types.int64(types.int64), generate


def _plain_lowest(word: Any) -> int:
    known = int(word) & _ALL
    return (known & -known).bit_length() - 1


@compiled_as(_plain_lowest)
def lowest(typing_context, word):
    """Return the number of the lowest bit of a word that is not 0."""

    def generate(context, builder, signature, arguments):
        return _cttz(context, builder, arguments[0])

    return types.int64(types.int64), generate


def _plain_highest(word: Any) -> int:
    return (int(word) & _ALL).bit_length() - 1


@compiled_as(_plain_highest)
def highest(typing_context, word):
    """Return the number of the highest bit of a word that is not 0."""

    def generate(context, builder, signature, arguments):
        zeros = _ctlz(context, builder, arguments[0])
        return builder.sub(zeros.type(LAST), zeros)

    return types.int64(types.int64), generate


@inlined
def words_of(ranks):
    """Return how many words the levels of a set of so many ranks have together."""
    count = (ranks + LAST) >> WORD_BITS
    total = count
    while count > 1:
        count = (count + LAST) >> WORD_BITS
        total += count
    return total


@inlined
def cleared(words, counts, starts, ranks):
    """Make a set of so many ranks empty; return its number of levels, whose starts are stored."""
    count, start, level = ranks, np.int64(0), np.int64(0)
    while True:
        count = (count + LAST) >> WORD_BITS
        starts[level] = start
        for i in range(start, start + count):
            words[i] = 0
            counts[i] = 0
        start += count
        level += 1
        if count <= 1:
            return level


@inlined
def put(ranked, rank):
    """Put a rank into level 0 alone; `summed` must follow before anything is looked up."""
    words = ranked[0]
    words[rank >> WORD_BITS] |= np.int64(1) << (rank & LAST)


@inlined
def summed(ranked, ranks):
    """Make the levels above level 0, and the counts."""
    words, counts, starts, levels = ranked
    size = (ranks + LAST) >> WORD_BITS
    for level in range(1, levels):
        under, own = starts[level - 1], starts[level]
        for i in range(size):
            word, place = words[under + i], own + (i >> WORD_BITS)
            counts[place] += ones(word) if level == 1 else counts[under + i]
            if word != 0:
                words[place] |= np.int64(1) << (i & LAST)
        size = (size + LAST) >> WORD_BITS


@shared
def _begun(ranked, rank):
    """Note that a word of level 0 has its first rank."""
    words, _, starts, levels = ranked
    for level in range(1, levels):
        rank >>= WORD_BITS
        words[starts[level] + (rank >> WORD_BITS)] |= np.int64(1) << (rank & LAST)


@shared
def _emptied(ranked, rank):
    """Note that a word of level 0 has lost its last rank."""
    words, _, starts, levels = ranked
    for level in range(1, levels):
        rank >>= WORD_BITS
        place = starts[level] + (rank >> WORD_BITS)
        words[place] &= ~(np.int64(1) << (rank & LAST))
        if words[place] != 0:
            return


@inlined
def _count(ranked, rank, change):
    """Change the counts for a rank; the last level has one, which nothing reads."""
    _, counts, starts, levels = ranked
    for level in range(1, levels - 1):
        place = starts[level] + (rank >> (WORD_BITS * (level + 1)))
        counts[place] += change


@inlined
def insert(ranked, rank):
    """Put a rank into a set that lacks it."""
    words, place = ranked[0], rank >> WORD_BITS
    word = load_scalar(words, place)
    words[place] = word | (np.int64(1) << (rank & LAST))
    if word == 0:
        _begun(ranked, rank)
    _count(ranked, rank, 1)


@inlined
def remove(ranked, rank):
    """Take a rank out of a set that has it."""
    words, place = ranked[0], rank >> WORD_BITS
    word = load_scalar(words, place) & ~(np.int64(1) << (rank & LAST))
    words[place] = word
    if word == 0:
        _emptied(ranked, rank)
    _count(ranked, rank, -1)


@shared
def _above(ranked, place):
    """Return the least rank in a word of level 0 after a place; -1 if there is none."""
    words, _, starts, levels = ranked
    for level in range(1, levels):
        word = words[starts[level] + (place >> WORD_BITS)]
        word &= (np.int64(-1) << (place & LAST)) << 1
        place >>= WORD_BITS
        if word != 0:
            place = (place << WORD_BITS) + lowest(word)
            for under in range(level - 1, -1, -1):
                place = (place << WORD_BITS) + lowest(words[starts[under] + place])
            return place
    return np.int64(-1)


@shared
def _under(ranked, place):
    """Return the largest rank in a word of level 0 before a place; -1 if there is none."""
    words, _, starts, levels = ranked
    for level in range(1, levels):
        word = words[starts[level] + (place >> WORD_BITS)]
        word &= ~(np.int64(-1) << (place & LAST))
        place >>= WORD_BITS
        if word != 0:
            place = (place << WORD_BITS) + highest(word)
            for under in range(level - 1, -1, -1):
                place = (place << WORD_BITS) + highest(words[starts[under] + place])
            return place
    return np.int64(-1)


@inlined
def after(ranked, rank):
    """Return the next rank of a set; -1 if there is none."""
    place = rank >> WORD_BITS
    word = load_scalar(ranked[0], place) & ((np.int64(-1) << (rank & LAST)) << 1)
    if word != 0:
        return (place << WORD_BITS) + lowest(word)
    return _above(ranked, place)


@inlined
def before(ranked, rank):
    """Return the rank of a set before a rank; -1 if there is none."""
    place = rank >> WORD_BITS
    word = load_scalar(ranked[0], place) & ~(np.int64(-1) << (rank & LAST))
    if word != 0:
        return (place << WORD_BITS) + highest(word)
    return _under(ranked, place)


@shared
def select(ranked, index):
    """Return the rank of a set that has so many smaller ones; the set has more than `index`."""
    words, counts, starts, levels = ranked
    place = np.int64(0)
    for level in range(levels - 2, -1, -1):
        place <<= WORD_BITS
        while True:
            count = ones(words[place]) if level == 0 else counts[starts[level] + place]
            if count > index:
                break
            index -= count
            place += 1
    word, bit, half = words[place], np.int64(0), np.int64(WORD >> 1)
    while half > 0:
        count = ones(word & ~(np.int64(-1) << half))
        if count <= index:
            index -= count
            bit += half
            word >>= half
        half >>= 1
    return (place << WORD_BITS) + bit

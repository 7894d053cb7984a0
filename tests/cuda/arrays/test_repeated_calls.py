"""Calls of all norms that repeat what an earlier one did: they give what a first call gives."""

import numpy as np
import pytest
from row_arrays import draw

import numnorm
from numnorm.backends.cuda.arrays.known_calls import KnownCall, forget
from numnorm.backends.cuda.arrays.recording import CURRENT

IMAGES, CHANNELS, SAMPLES = (2, 4, 5), (4,), (2, 4)
MASK = np.random.default_rng(5).random(IMAGES) < 0.7


class Arrays:
    """Arrays on the device of a library, drawn with a seed of their own."""

    def __init__(self, library, seed, dtype="float32"):
        self.take, self.seed, self.dtype = library.take, seed, dtype

    def new(self, shape, number=0):
        return self.take(draw(shape, self.dtype, 10 * self.seed + number))

    def positive(self, shape, number=0):
        """Return statistics, of the dtype of saved ones."""
        dtype = "float32" if self.dtype == "float16" else "float64"
        return self.take(np.abs(draw(shape, dtype, 10 * self.seed + number)) + 1)


CALLS = {
    "ada_norm": lambda of: numnorm.ada_norm(of.new(IMAGES)),
    "batch_norm": lambda of: numnorm.batch_norm_forward(
        of.new(IMAGES), of.new(CHANNELS, 1), of.new(CHANNELS, 2)
    ),
    "batch_norm of two axes": lambda of: numnorm.batch_norm_forward(
        of.new((2, 2, 5)), of.new((2, 2), 1), channel_axis=(0, 1)
    ),
    "batch_norm in inference": lambda of: numnorm.batch_norm_forward(
        of.new(IMAGES), running_mean=of.new(CHANNELS, 1), running_var=of.positive(CHANNELS, 2),
        training=False,
    ),
    "batch_norm_backward": lambda of: numnorm.batch_norm_backward(
        of.new(IMAGES), of.new(IMAGES, 1), of.positive(CHANNELS, 2), of.positive(CHANNELS, 3),
        of.new(CHANNELS, 4),
    ),
    "batch_norm_backward, frozen": lambda of: numnorm.batch_norm_backward(
        of.new(IMAGES), of.new(IMAGES, 1), of.positive(CHANNELS, 2), of.positive(CHANNELS, 3),
        training=False,
    ),
    "batch_moments": lambda of: numnorm.batch_moments(of.new(IMAGES)),
    "group_norm": lambda of: numnorm.group_norm_forward(
        of.new(IMAGES), of.new(CHANNELS, 1), groups=2
    ),
    "a gain of samples": lambda of: numnorm.layer_norm_forward(
        of.new(IMAGES), of.new((2, 1, 1), 1)
    ),
    "weight_norm": lambda of: numnorm.weight_norm_forward(of.new((4, 9)), of.new(CHANNELS, 1)),
    "weight_norm_backward": lambda of: numnorm.weight_norm_backward(
        of.new((4, 9)), of.new((4, 9), 1), of.positive(CHANNELS, 2), of.new(CHANNELS, 3)
    ),
    "moving_norm": lambda of: numnorm.moving_norm_forward(of.new((2, 20)), 17),
    "moving_norm_backward": lambda of: numnorm.moving_norm_backward(
        of.new(IMAGES), of.new(IMAGES, 1), of.positive(IMAGES, 2), of.positive(IMAGES, 3), 3
    ),
    "exponential_norm": lambda of: numnorm.exponential_norm_forward(of.new(IMAGES), 0.5),
    "exponential_norm_backward": lambda of: numnorm.exponential_norm_backward(
        of.new(IMAGES), of.new(IMAGES, 1), of.positive(IMAGES, 2), of.positive(IMAGES, 3), 0.5
    ),
    "exponential_norm_step": lambda of: numnorm.exponential_norm_step(
        of.new(IMAGES), 0.5, numnorm.exponential_norm_step(of.new(IMAGES, 1), 0.5)[1]
    ),
    "a mask": lambda of: numnorm.layer_norm_forward(of.new(IMAGES), where=of.take(MASK)),
    "a mask, backward": lambda of: numnorm.layer_norm_backward(
        of.new(IMAGES), of.new(IMAGES, 1), of.positive(SAMPLES, 2), of.positive(SAMPLES, 3),
        of.new((5,), 4), where=of.take(MASK),
    ),
    "a mask of channels": lambda of: numnorm.batch_norm_forward(
        of.new(IMAGES), of.new(CHANNELS, 1), where=of.take(MASK)
    ),
    "a mask of channels, backward": lambda of: numnorm.batch_norm_backward(
        of.new(IMAGES), of.new(IMAGES, 1), of.positive(CHANNELS, 2), of.positive(CHANNELS, 3),
        of.new(CHANNELS, 4), where=of.take(MASK),
    ),
    "a mask of steps": lambda of: numnorm.moving_norm_forward(
        of.new(IMAGES), 3, where=of.take(MASK)
    ),
}  # fmt: skip


@pytest.fixture
def repeats(monkeypatch):
    """The known calls that were repeated."""
    found = []

    def run(self, *given, own=KnownCall.run):
        found.append(self)
        return own(self, *given)

    monkeypatch.setattr(KnownCall, "run", run)
    return found


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, tuple):
        for each, twin in zip(one, other, strict=True):
            assert_same(each, twin)
    elif hasattr(one, "host"):
        assert one.host.dtype == other.host.dtype
        np.testing.assert_array_equal(one.host, other.host)
    else:
        assert one == other


@pytest.mark.parametrize("case", CALLS)
def test_what_a_first_call_gives(library, repeats, case):
    CALLS[case](Arrays(library, 0))
    del repeats[:]
    found = CALLS[case](Arrays(library, 1))
    assert len(repeats) == (2 if case == "exponential_norm_step" else 1)
    forget()
    assert_same(found, CALLS[case](Arrays(library, 1)))


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm"])
def test_other_dtypes_shapes_strides_and_arguments(imported, repeats, norm):
    """Whatever a call has in common with an earlier one, it gives what a first one gives."""
    library, function = imported("torch"), getattr(numnorm, f"{norm}_forward")
    given: list[tuple] = []
    for dtype in ("float32", "float64"):
        for shape in ((3, 4), (4, 3), (12, 1)):
            weights = [library.take(draw(shape[1:], dtype, seed)) for seed in (1, 2)]
            given += [(shape, dtype, False, *weights), (shape, dtype, False, None, weights[1])]
            given += [(shape, dtype, False, weights[0]), (shape, dtype, True)]

    def result(shape, dtype, turned, *weights):
        x = draw(shape[::-1], dtype).T if turned else draw(shape, dtype)
        return function(library.take(x), *weights)

    for each in given:
        result(*each)
    found = [result(*each) for each in given]
    # A matrix that is turned is copied first, but for one of a single column.
    assert len(repeats) == len(given) - 4
    for each, known in zip(given, found, strict=True):
        forget()
        assert_same(known, result(*each))


@pytest.mark.parametrize("name", ["batch_norm", "moving_norm", "layer_norm"])
def test_outputs_and_gradients_that_overlap(imported, repeats, name):
    library, size = imported("torch"), 12
    memory = np.zeros(3 * size, np.float32)
    library.take(memory)
    number = (3,) if name == "moving_norm" else ()
    x = draw((3, 4))
    expected = getattr(numnorm, name)(library.take(x.copy()), *number).host
    for _ in range(2):
        for start in (0, 1, 4, 12, 13):
            memory[:size] = x.reshape(-1)
            source, out = (
                library.take(memory[first : first + size].reshape(3, 4)) for first in (0, start)
            )
            assert getattr(numnorm, name)(source, *number, out=out) is out
            np.testing.assert_array_equal(out.host, expected)
    # Where memory overlaps, a moving norm copies, and the others do unless it is the same.
    assert len(repeats) == (2 if name == "moving_norm" else 3)


def test_one_array_in_two_places(imported, repeats):
    """That arrays were one and the same is no reason to take them for it again."""
    library = imported("torch")
    x, dy, other = (library.take(draw((3, 4), seed=seed)) for seed in range(3))
    saved = [library.take(np.abs(draw((4,), "float64", seed)) + 1) for seed in (4, 5)]
    pairs = [(x, x), (dy, x), (dy, other), (other, other)]
    found = [numnorm.batch_norm_backward(*pair, *saved) for pair in pairs]
    assert len(repeats) == 2
    for pair, result in zip(pairs, found, strict=True):
        forget()
        assert_same(result, numnorm.batch_norm_backward(*pair, *saved))


@pytest.mark.parametrize("norm", ["batch_norm", "instance_norm"])
def test_running_statistics(imported, repeats, norm):
    library = imported("torch")
    function, states = getattr(numnorm, f"{norm}_forward"), []
    for knows in (True, False):
        forget()
        running = [library.take(np.full(4, value, np.float32)) for value in (0.5, 2.0)]
        for seed in range(3):
            x = library.take(draw(IMAGES, seed=seed))
            weight = 0.1 if seed < 2 else 0.3
            given = {"running_mean": running[0], "running_var": running[1], "momentum": weight}
            y = function(x, **given)
            if not knows:
                forget()
        states.append((*y, *running))
    assert len(repeats) == 1
    assert_same(tuple(states[0]), tuple(states[1]))


def test_means_and_variances_that_share_memory_are_refused_again(imported):
    library = imported("torch")
    memory = np.ones(8, np.float32)
    library.take(memory)
    x = library.take(draw((3, 4)))
    for start in (4, 2, 4, 2):
        running = [library.take(memory[first : first + 4]) for first in (0, start)]
        if start == 4:
            numnorm.batch_norm(x, None, None, running_mean=running[0], running_var=running[1])
            continue
        with pytest.raises(ValueError, match=r"^running_var must not share memory"):
            numnorm.batch_norm(x, None, None, running_mean=running[0], running_var=running[1])


@pytest.mark.parametrize("fills", [(0.0, -0.0), (float("nan"), 1.0)])
def test_fills_that_are_equal_or_not_to_themselves(imported, fills):
    library = imported("torch")
    x, mask = library.take(draw(IMAGES)), library.take(MASK)
    for fill in (*fills, *fills):
        y = numnorm.layer_norm(x, where=mask, fill=fill)
        left_out = y.host[~MASK]
        np.testing.assert_array_equal(left_out, np.float32(fill))
        np.testing.assert_array_equal(np.signbit(left_out), np.signbit(fill))


def test_copies_are_made_again(imported, repeats):
    """A call that hands a kernel a copy is no known one."""
    library = imported("torch")
    for seed in range(3):
        x = draw((4, 3), seed=seed)
        mask = np.random.default_rng(seed).random((4, 3)) < 0.7
        for call in (
            lambda x=x: numnorm.layer_norm(library.take(x), axis=0),
            lambda x=x, mask=mask: numnorm.layer_norm(library.take(x), where=mask),
            lambda x=x, mask=mask: numnorm.layer_norm(
                library.take(x), where=library.take(mask[:1])
            ),
            lambda x=x: numnorm.layer_norm(library.take(x.T.copy().T)),
        ):
            found = call()
            forget()
            assert_same(found, call())


def test_an_x_that_becomes_another_array(imported):
    """A gain that broadcasts is applied to x in float32: that is no array of the caller."""
    library = imported("torch")
    gamma = draw((2, 1, 1), "float16", 1)
    for x in (draw(IMAGES, "float16"), draw((5, 4, 2)).T):
        for _ in range(3):
            numnorm.layer_norm(library.take(x))
            y = numnorm.layer_norm(library.take(x), library.take(gamma.astype(x.dtype)))
            expected = numnorm.layer_norm(x, gamma.astype(x.dtype))
            # One rounding of the dtype, relative to the largest value.
            atol = np.finfo(x.dtype).eps * abs(expected).max()
            np.testing.assert_allclose(y.host, expected, rtol=0, atol=atol)


def test_an_error_leaves_no_recording(imported, repeats):
    library = imported("torch")
    with pytest.raises(ValueError, match=r"^gamma must have shape"):
        numnorm.batch_norm(library.take(draw((3, 4))), library.take(draw((5,))))
    assert CURRENT.recording is None


def test_new_arrays_of_kernels_are_one(imported, repeats):
    """A known call allocates once for what no caller gets."""
    library, x = imported("torch"), draw(IMAGES)
    for _ in range(2):
        numnorm.batch_norm(library.take(x))
    ((_, y_name), (scratch, name)) = repeats[0].new
    assert (y_name, name) == ("float32", "float32")
    assert len(scratch) == 1

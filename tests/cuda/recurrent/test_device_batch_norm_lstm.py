"""The LSTM with batch norm on device arrays of every library, beside the host's."""

import itertools

import fake_libraries
import ml_dtypes
import numpy as np
import pytest
from cell_calls import Case, assert_same
from cell_steps import assert_close

from numnorm import rnn
from numnorm.rnn import LSTMStatistics, RecurrentBatchNorm

VARIANTS = ("paper", "normalized_cell", "per_gate", "cell_only")
UNITS = 5
# One sequence takes the last step alone.
ALONE = [1, 3, 0, 2]


def statistics(variant, steps=3, dtypes=("float64",), units=UNITS):
    """Running statistics, none of them special, of one dtype after the other."""
    rng, dtypes = np.random.default_rng(3), itertools.cycle(dtypes)
    fresh = rnn.lstm_statistics_init(steps, units, variant=variant, dtype=np.float64)
    return LSTMStatistics(
        *(
            None if s is None else (s + rng.uniform(0, 0.5, s.shape)).astype(next(dtypes))
            for s in fresh
        )
    )


def taken(found, take):
    return LSTMStatistics(*(None if s is None else take(s.copy()) for s in found))


def with_statistics(case, found, **options):
    """The case with running statistics."""
    case.norm = case.norm | {"norm": RecurrentBatchNorm(found, **options)}
    return case


def assert_updated(found, expected, before, dtype):
    """The running statistics of a device are those of the host, which have moved."""
    moved = False
    for name, value in expected._asdict().items():
        if value is None:
            assert getattr(found, name) is None
            continue
        got = getattr(found, name).host
        assert got.dtype == value.dtype
        # Half a unit in the last place of what is stored, beside the roundings of the call.
        bound = {"float16": 1e-3, "float32": 1e-6}.get(value.dtype.name, 0)
        bound += 1e-10 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(
            got.astype(np.float64), value.astype(np.float64), bound, bound, err_msg=name
        )
        moved |= bool((value != getattr(before, name)).any())
    assert moved


# Results


@pytest.mark.parametrize("lengths", [None, ALONE], ids=["even", "ragged"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(imported, variant, lengths):
    case = Case(norm="batch", variant=variant, time=3)
    found = case.to(imported("torch").take, "float64").run(lengths=lengths)
    assert_same(found, case.run(lengths=lengths), "float64")


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_order_of_threads(imported, variant, order):
    case, take = Case(norm="batch", variant=variant, time=2), imported("torch").take
    found = case.to(take, "float32").run(lengths=[2, 2, 1, 2])
    assert_same(found, case.run(lengths=[2, 2, 1, 2]), "float32")


@pytest.mark.parametrize("variant", ["normalized_cell", "per_gate"])
def test_many_sequences_and_units(imported, variant, order):
    # More than the strips of a block, and than the units of one.
    case = Case(norm="batch", variant=variant, units=9, time=2, batch=35)
    lengths = [1 + (i % 17 > 0) for i in range(35)]
    found = case.to(imported("torch").take, "float64").run(lengths=lengths)
    assert_same(found, case.run(lengths=lengths), "float64")


def test_whatever_new_memory_holds(imported, monkeypatch, order):
    # NaN in it would be taken for squares that left the range, and be read again.
    monkeypatch.setattr(
        fake_libraries, "poisoned", lambda *like: fake_libraries.filled(like[0], 9.0, like[1])
    )
    case = Case(norm="batch", time=1, batch=35)
    found = case.to(imported("torch").take, "float32").run()
    assert_same(found, case.run(), "float32")


@pytest.mark.parametrize("training", [None, True, False], ids=["batch", "training", "inference"])
def test_libraries(products, training):
    if training and products.called == "jax":
        pytest.skip("running statistics of JAX cannot be updated")
    case, dtypes = Case(norm="batch", time=3), ("float32", "float16")
    device, before = case.to(products.take, "float32"), statistics("paper", 3, dtypes)
    here, there = taken(before, lambda s: s), taken(before, products.take)
    if training is not None:
        with_statistics(case, here, training=training)
        with_statistics(device, there, training=training)
    found = device.run(lengths=ALONE, reverse=True)
    assert_same(found, case.run(lengths=ALONE, reverse=True), "float32")
    assert all(type(f) is type(products.take(np.zeros(1))) for f in found.values())
    if training:
        assert_updated(there, here, before, "float32")
    else:
        for old, new in zip(before, there, strict=True):
            assert (new.host == old).all()


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("paper", {}),
        ("normalized_cell", {"momentum": 0.25, "first_step": 2}),
        ("per_gate", {"convention": "keras", "momentum": 0.5}),
        ("cell_only", {"unbiased": False}),
        ("paper", {"first_step": 9}),
    ],
    ids=str,
)
def test_running_statistics_after_several_calls(imported, variant, options):
    take, before = imported("torch").take, statistics(variant, 4, ("float64", "float32"))
    here, there = taken(before, lambda s: s), taken(before, take)
    for seed in range(2):
        case = Case(norm="batch", variant=variant, time=3, seed=seed)
        device = with_statistics(case.to(take, "float64"), there, **options)
        given = with_statistics(case, here, **options)
        found, expected = (c.call(lengths=ALONE) for c in (device, given))
        for one, other in zip(found, expected, strict=True):
            assert_close(one.host, other, "float64")
    if "first_step" not in options or options["first_step"] < 4:
        assert_updated(there, here, before, "float64")
    else:
        for old, new in zip(before, there, strict=True):
            assert old is None or (new.host == old).all()


@pytest.mark.parametrize(
    ("variant", "first"), [("paper", 0), ("normalized_cell", 2), ("per_gate", 9), ("cell_only", 1)]
)
def test_inference(imported, variant, first):
    take, given = imported("torch").take, statistics(variant, 3, ("float16", "float64"))
    case = Case(norm="batch", variant=variant, time=3)
    device, options = case.to(take, "float64"), {"training": False, "first_step": first}
    found = with_statistics(device, taken(given, take), **options).run(lengths=ALONE)
    assert_same(found, with_statistics(case, given, **options).run(lengths=ALONE), "float64")


def test_inference_in_any_order_of_threads(imported, order):
    take, given = imported("torch").take, statistics("paper", 2)
    case = Case(norm="batch", time=2)
    device = with_statistics(case.to(take, "float32"), taken(given, take), training=False)
    assert_same(device.run(), with_statistics(case, given, training=False).run(), "float32")


def test_inference_does_not_depend_on_the_batch_but_for_its_products(imported):
    take, given = imported("torch").take, statistics("paper", 3)
    case = with_statistics(
        Case(norm="batch", time=2).to(take, "float64"), taken(given, take), training=False
    )
    expected = case.call()
    case.x.host[1, 1, 0], case.x.host[0, 3, 2] = np.nan, np.inf
    found = case.call()
    assert (found.y.host[:, [0, 2]] == expected.y.host[:, [0, 2]]).all()
    assert np.isnan(found.y.host[1:, 1]).all()


@pytest.mark.parametrize("eps", [1e-5, 0.0])
@pytest.mark.parametrize("variant", ["paper", "per_gate"])
def test_products_of_any_scale_beside_each_other(imported, variant, eps, order):
    # By powers of two, which the host's results do not change by, in float64.
    scales = np.array([1, 2.0**-90, 2.0**118])
    case = Case(norm="batch", variant=variant, units=3, time=2)
    case.x = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(np.float32).astype(np.float64)
    weights = np.zeros_like(case.parameters.weight_x)
    for unit, scale in enumerate(scales):
        weights[unit::3] = case.parameters.weight_x[unit::3] * scale
    case.parameters = case.parameters._replace(weight_x=weights, weight_h=0 * weights[:, :3])
    device = case.to(imported("torch").take, "float32")
    found = device.call(eps=eps)
    expected = case.call(eps=eps)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.host, other, "float32")


def test_running_statistics_of_any_scale(imported):
    take = imported("torch").take
    case, before = Case(norm="batch", units=UNITS, time=1), statistics("paper", 1)
    weights = case.parameters.weight_x * 2.0**70  # whose squares are beyond float32
    case.parameters = case.parameters._replace(weight_x=weights)
    here, there = taken(before, lambda s: s), taken(before, take)
    device = with_statistics(case.to(take, "float32"), there)
    rnn.lstm(device.x, device.parameters, **device.norm)
    case = with_statistics(case, here)
    rnn.lstm(case.x, case.parameters, **case.norm)
    np.testing.assert_allclose(there.var_x.host, here.var_x, 1e-5)
    np.testing.assert_allclose(there.mean_x.host, here.mean_x, 1e-5, 1e-5 * 2.0**70)


def test_constant_columns_without_epsilon(imported, order):
    # Their normalized value is 0 by convention, whatever the rounding of a mean.
    case = Case(norm="batch", units=3, time=2)
    case.x[:], case.states[0][:], case.states[1][:] = 0.1, 0.7, 0.3
    device = case.to(imported("torch").take, "float32")
    y, *_ = device.call(eps=0.0)
    expected, *_ = case.call(eps=0.0)
    assert_close(y.host, expected, "float32")


def test_a_single_sequence(imported):
    case = Case(norm="batch", batch=1, time=2)
    device = case.to(imported("torch").take, "float64")
    found, expected = device.run(), case.run()
    for name in ("y", "h", "c", "dbias", "dgamma_c", "dbeta_c"):
        assert_close(found[name].host, expected[name], "float64", name)
    # A difference of equal numbers of size 1, times 1 / sqrt(eps) in up to four norms of a step.
    assert np.abs(found["dx"].host).max() < 1e-9


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(imported, dtype):
    case, library = Case(norm="batch", time=2), imported("torch")
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = case.to(library.take, kind).run()
    same = Case(norm="batch", time=2)
    for array in same.arrays():
        array[...] = array.astype(kind)
    # Half a unit in the last place, and float32 roundings that cross it or grow on the way back.
    bound = 1e-3 if dtype == "float16" else 8e-3
    for name, value in same.run().items():
        got = found[name].host
        assert got.dtype == kind
        largest = np.abs(value).max()
        np.testing.assert_allclose(
            got.astype(np.float64), value, bound, 3e-5 * largest, err_msg=name
        )


def test_jax_without_float64(imported):
    library, case = imported("jax"), Case(norm="batch", time=2)
    library.config.jax_enable_x64 = False
    given = statistics("paper", 3, ("float32",))
    assert_same(case.to(library.take, "float32").run(), case.run(), "float32")
    device = case.to(library.take, "float32")
    found = with_statistics(device, taken(given, library.take), training=False).run()
    assert_same(found, with_statistics(case, given, training=False).run(), "float32")


def test_statistics_that_are_not_contiguous(imported):
    take, before = imported("torch").take, statistics("paper", 3)
    here = taken(before, lambda s: s)
    there = LSTMStatistics(*(take(np.array(s.T, order="C")).permute((1, 0)) for s in before))
    case = Case(norm="batch", time=2)
    device = with_statistics(case.to(take, "float64"), there)
    rnn.lstm(device.x, device.parameters, **device.norm)
    case = with_statistics(case, here)
    rnn.lstm(case.x, case.parameters, **case.norm)
    assert_updated(there, here, before, "float64")


def test_cell(products):
    case = Case(norm="batch", time=1)
    device, before = case.to(products.take, "float32"), statistics("paper")
    training = products.called != "jax"
    here, there = taken(before, lambda s: s), taken(before, products.take)
    expected = with_statistics(case, here, training=training, first_step=1).run()
    with_statistics(device, there, training=training, first_step=1)
    given = products.take(device.x.host[0]), device.parameters, *device.states
    *found, saved = rnn.lstm_cell_forward(*given, **device.norm)
    grad = products.take(device.grads[0].host + device.dy.host[0])
    gradients = rnn.lstm_cell_backward(grad, saved, device.grads[1])
    for name, got in zip(("h", "c", "dh", "dc"), (*found, *gradients[1:3]), strict=True):
        assert_close(got.host, expected[name], "float32", name, 5)
    if training:
        assert_updated(there, here, before, "float32")


def test_twice_the_same_bytes(imported, order):
    case = Case(norm="batch", time=2).to(imported("torch").take, "float32")
    for one, other in zip(case.run().values(), case.run().values(), strict=True):
        assert one.host.tobytes() == other.host.tobytes()


def test_missing_gammas(imported):
    case = Case(norm="batch", time=2)
    case.parameters = case.parameters._replace(gamma_x=None, gamma_c=None, beta_h=None)
    found = case.to(imported("torch").take, "float64").run()
    assert_same(found, case.run(), "float64")


@pytest.mark.parametrize("variant", ["paper", "cell_only"])
@pytest.mark.parametrize(("time", "batch"), [(0, 2), (3, 0)])
def test_nothing(products, variant, time, batch):
    case = Case(norm="batch", variant=variant, time=time, batch=batch)
    assert_same(case.to(products.take, "float32").run(), case.run(), "float32")


# Errors


def test_statistics_lie_where_x_does(library):
    case, given = Case(norm="batch"), statistics("paper")
    device = case.to(library.take, "float32")
    there = taken(given, library.take)
    elsewhere = there._replace(var_h=library.take(given.var_h, 1))
    calls = {
        "norm.statistics.mean_x must be a .* on device 0, as x is": (device, given),
        "norm.statistics.var_h must be on device 0, as x is, got one on device 1": (
            device,
            elsewhere,
        ),
        "norm.statistics.mean_x must lie on the host": (case, there),
    }
    for message, (one, found) in calls.items():
        with_statistics(one, found, training=library.called != "jax" or one is case)
        with pytest.raises((TypeError, ValueError), match=message):
            rnn.lstm(one.x, one.parameters, **one.norm)


def test_statistics_of_jax_cannot_be_updated(imported):
    library = imported("jax")
    case = Case(norm="batch").to(library.take, "float32")
    with_statistics(case, taken(statistics("paper"), library.take))
    with pytest.raises(
        TypeError,
        match=r"^norm\.statistics\.mean_x must be an array to be updated: a jax\.Array cannot be",
    ):
        rnn.lstm(case.x, case.parameters, **case.norm)


def test_statistics_are_checked(imported):
    library = imported("torch")
    case, given = Case(norm="batch").to(library.take, "float32"), statistics("paper")
    there = taken(given, library.take)
    calls = {
        r"mean_x must have shape \(S, 20\) with S at least 1, got \(0, 20\)": there._replace(
            mean_x=library.take(np.zeros((0, 20)))
        ),
        r"var_c must have shape \(3, 5\), that of the steps and units, got \(2, 5\)": (
            there._replace(var_c=library.take(np.ones((2, 5))))
        ),
        "mean_h must not share memory with mean_x, got such an array": there._replace(
            mean_h=there.mean_x
        ),
        "mean_c must be converted to float16, .* on the device, got int64": there._replace(
            mean_c=library.take(np.zeros((3, 5), np.int64))
        ),
    }
    for message, found in calls.items():
        with_statistics(case, found)
        with pytest.raises((TypeError, ValueError), match=rf"norm\.statistics\.{message}"):
            rnn.lstm(case.x, case.parameters, **case.norm)
    for old, new in zip(given, there, strict=True):
        assert (new.host == old).all()
    with_statistics(case, there)
    with pytest.raises(ValueError, match="x must have at least 2 sequences that have a step"):
        rnn.lstm(case.x, case.parameters, lengths=[0, 4, 0, 0], **case.norm)

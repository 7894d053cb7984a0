"""Every kind of kernel, compiled for compute capabilities: ``python sass_kernels.py 9.0 8.0``.

It prints JSON: for each kernel its resources from ptxas and the counts of its operations. With
``--markdown FILE`` it writes a table, as `nox -s sass_all` does to ``build/gpu_kernels.md``.
"""

import argparse
import functools
import io
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The oldest that the compiler supports, and two common ones.
CAPABILITIES = ("7.5", "8.0", "9.0")
# The number of processes that compile the kernels.
PIECES = 4

# In the names of cooperative kernels, whose blocks are each alone on a multiprocessor.
ALL_STEPS = ", all steps,"
# In the names of kernels for rows that do not fit the registers of a block.
WIDE = ", vectors of a thread: "

HEAD = """\
# Registers of the CUDA kernels

What each kernel takes of a device, found by compiling it, without one: registers of a thread,
bytes of its stack, loads and stores of 16 bytes and of less, float64 operations and barriers.
`whole` rows and channels begin and end at multiples of 16 bytes, `any` are of any width;
`unaligned` ones have the width of whole ones, in an array that begins elsewhere.
A float32 kernel has float64 operations only where a saved statistic is read or written.

"""


# Whether rows fill a multiple of 16 bytes, and whether arrays begin at one.
PLACES = {"whole": (True, True), "unaligned": (True, False), "any": (False, True)}


def place_of(shape):
    """Return the name in `PLACES` for the rows of a shape."""
    return next(p for p, found in PLACES.items() if found == (shape.whole, shape.aligned))


def row_places():
    """Yield every element type with every place; only float32 and bfloat16 are also unaligned."""
    from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES

    for element, (place, found) in itertools.product(ELEMENT_TYPES.values(), PLACES.items()):
        if place != "unaligned" or element.name in ("float32", "bfloat16"):
            yield element, found


def row_kernels():
    """Yield the kernels of rows in registers, of rows that are read twice, and of sums of rows."""
    from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32, FLOAT64
    from numnorm.backends.cuda.rows.forward_kernel import make_row_forward
    from numnorm.backends.cuda.rows.forward_loop_kernel import make_row_forward_loop
    from numnorm.backends.cuda.threads.row_columns import Weights
    from numnorm.backends.cuda.threads.row_shape import RowShape
    from numnorm.norms.ada import ADA
    from numnorm.norms.affine import AFFINE, GAIN

    def name_of(kind, formula, element, shape):
        threads = f"{shape.team} × {shape.teams} threads, {shape.vectors} vectors"
        return f"{kind} {formula.name} {element.name}, {threads}, {place_of(shape)}"

    def forward(make, kind, formula, element, *shape):
        shape, plain = RowShape(*shape), formula is ADA.formula
        weights = Weights(None if plain else element, element if formula is AFFINE else None)
        kernel = make(formula, element, FLOAT64, weights, shape)
        return name_of(kind, formula, element, shape), kernel

    added = functools.partial(make_row_forward, adds=True)
    for element in ELEMENT_TYPES.values():
        yield forward(added, "row forward added", AFFINE, element, 16, 8, 1, True)
        yield forward(added, "row forward added", AFFINE, element, 256, 1, 4, True)
    for element, place in row_places():
        yield forward(make_row_forward, "row forward", AFFINE, element, 16, 8, 1, *place)
        yield forward(make_row_forward, "row forward", AFFINE, element, 256, 1, 4, *place)
        yield forward(make_row_forward_loop, "row forward", AFFINE, element, 1024, 1, 0, *place)
    for formula in (GAIN, ADA.formula):
        yield forward(make_row_forward, "row forward", formula, FLOAT32, 256, 1, 4, True)
    for shape in ((128, 1, 2), (256, 1, 8), (512, 1, 8)):
        for place in PLACES.values():
            yield forward(make_row_forward, "row forward", AFFINE, FLOAT32, *shape, *place)


def row_gradient_kernels():
    """Yield the kernels of the gradients of rows, and of gamma and beta."""
    from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32, FLOAT64
    from numnorm.backends.cuda.rows.backward_kernel import make_row_backward
    from numnorm.backends.cuda.rows.parameter_sums import make_parameter_gradients
    from numnorm.backends.cuda.threads.row_columns import Weights
    from numnorm.backends.cuda.threads.row_shape import RowShape
    from numnorm.norms.ada import ADA
    from numnorm.norms.affine import AFFINE, GAIN

    def backward(formula, element, parameters, shared, *shape, adds=False):
        shape = RowShape(*shape)
        weights = Weights(element if parameters else None, None, shared)
        kernel = make_row_backward(formula, element, FLOAT64, weights, parameters, shape, adds=adds)
        kind = "row backward by segment" if shared else "row backward" + " added" * adds
        threads = f"{shape.team} × {shape.teams} threads, {shape.vectors} vectors"
        return f"{kind} {formula.name} {element.name}, {threads}, {place_of(shape)}", kernel

    for element in ELEMENT_TYPES.values():
        vectors = 16 // element.vector // (2 if element is FLOAT64 else 1)
        yield backward(AFFINE, element, 2, False, 512, 1, vectors, True)
        yield backward(AFFINE, element, 2, False, 16, 8, 1, True)
        yield backward(AFFINE, element, 2, False, 512, 1, vectors, True, adds=True)
        yield f"parameter gradients {element.name}", make_parameter_gradients(element, element)
    yield backward(AFFINE, FLOAT32, 2, False, 128, 1, 2, False)
    yield backward(AFFINE, FLOAT32, 2, False, 128, 1, 2, True, False)
    yield backward(AFFINE, FLOAT32, 2, True, 128, 1, 2, True)
    yield backward(GAIN, FLOAT32, 1, False, 512, 1, 4, True)
    yield backward(ADA.formula, FLOAT32, 0, False, 256, 1, 4, True)


def wide_row_gradient_kernels():
    """Yield the kernels of the gradients of rows that are read in a loop."""
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.rows import backward_loop_kernel as loop
    from numnorm.backends.cuda.rows.backward_loop_kernel import make_row_backward_columns
    from numnorm.backends.cuda.threads.row_columns import Weights
    from numnorm.backends.cuda.threads.row_shape import RowShape
    from numnorm.norms.ada import ADA
    from numnorm.norms.affine import AFFINE, GAIN

    def name_of(kind, formula, element, shape):
        threads = f"{shape.team} × {shape.teams} threads"
        kind = f"wide row backward {kind} {formula.name}"
        return f"{kind} {element.name}, {threads}, {place_of(shape)}"

    def by_segments(formula, element, parameters, *shape):
        shape = RowShape(*shape)
        weights = Weights(element if parameters else None, None, shared=parameters > 0)
        kernel = loop.make_row_backward_loop(formula, element, FLOAT64, weights, parameters, shape)
        return name_of("by segment", formula, element, shape), kernel

    def coefficients(formula, element, *place):
        shape, weights = RowShape(512, 1, 0, *place), Weights(element, None)
        kernel = loop.make_row_backward_coefficients(formula, element, FLOAT64, weights, shape)
        return name_of("terms", formula, element, shape), kernel

    def by_columns(formula, element, parameters, *place):
        shape, weights = RowShape(128, 1, 1, *place), Weights(element, None)
        kernel = make_row_backward_columns(formula, element, weights, parameters, shape)
        return name_of("by column", formula, element, shape), kernel

    for element, place in row_places():
        yield by_segments(AFFINE, element, 2, 512, 1, 0, *place)
        yield by_segments(AFFINE, element, 2, 32, 16, 0, *place)
        yield coefficients(AFFINE, element, *place)
        yield by_columns(AFFINE, element, 2, *place)
    yield coefficients(GAIN, FLOAT32, True)
    yield by_columns(GAIN, FLOAT32, 1, True)
    yield by_segments(ADA.formula, FLOAT32, 0, 512, 1, 0, True)


def moving_kernels():
    """Yield the kernels of moving norms, whose statistics are float64 numbers for all elements."""
    from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32, FLOAT64
    from numnorm.backends.cuda.moving import exponential_kernels as exponential
    from numnorm.backends.cuda.moving import stream_kernels as streams
    from numnorm.backends.cuda.moving import window_kernels as windows

    elements = ELEMENT_TYPES.values()
    for missing, element in itertools.product((False, True), elements):
        if missing and element is not FLOAT32:
            continue
        saved = FLOAT32 if element.name == "float16" else FLOAT64
        kinds = element, saved, missing
        what = f"{element.name}, statistics float64{', steps missing' if missing else ''}"
        yield f"moving sums of chunks {what}", windows.make_chunk_sums(element, missing)
        yield f"moving windows {what}", windows.make_windows(*kinds)
        yield f"moving terms of chunks, backward {what}", windows.make_chunk_gradients(*kinds)
        yield f"moving windows, backward {what}", windows.make_window_gradients(*kinds)
        yield f"moving exponential {what}", exponential.make_exponential(*kinds)
        gradients = exponential.make_exponential_gradients(*kinds)
        yield f"moving exponential, backward {what}", gradients
    for missing in (False, True):
        what = f"float32{', steps missing' if missing else ''}"
        yield f"moving steps of a stream joined {what}", streams.make_joined(FLOAT32, missing)
        yield f"moving last steps of a stream {what}", streams.make_last_steps(FLOAT32, missing)
    yield "moving counts of windows float32, in float64", windows.make_window_counts(FLOAT32)
    for missing, element in ((False, FLOAT64), (True, FLOAT32)):
        shares = exponential.make_shares(element, missing)
        yield f"moving shares float64 of {element.name}", shares


def weighted_row_kernels():
    """Yield the kernels of rows with a mask or weights, whose sums are float64 whatever x is."""
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.threads.row_columns import Weights
    from numnorm.backends.cuda.threads.row_shape import RowShape
    from numnorm.backends.cuda.weighted import row_kernels as weighted
    from numnorm.backends.cuda.weighted.rows import shape_for
    from numnorm.norms.ada import ADA
    from numnorm.norms.affine import AFFINE, GAIN

    def kernels(formula, element, count, width, *, shared=False):
        shape, gamma = shape_for(width), element if count else None
        weights = Weights(gamma, element if count > 1 else None, shared)
        types = weighted.Types(element, element, FLOAT64, FLOAT64, weights)
        what = f"{formula.name} {element.name} in float64, {shape.team} × {shape.teams} threads"
        what += ", by segment" if shared else ""
        yield f"weighted forward {what}", weighted.make_weighted_forward(formula, types, shape)
        types = types._replace(parameters=Weights(gamma, None, shared))
        kernel = weighted.make_weighted_coefficients(formula, types, shape)
        yield f"weighted terms backward {what}", kernel
        if count and not shared:
            columns = RowShape(128, 1, 0, whole=False)
            kernel = weighted.make_weighted_columns(formula, types, count, columns)
            yield f"weighted columns backward {what}", kernel
        else:
            kernel = weighted.make_weighted_segments(formula, types, count, shape)
            yield f"weighted segments backward {what}", kernel

    for element, width in itertools.product((FLOAT32, FLOAT64), (64, 4096)):
        yield from kernels(AFFINE, element, 2, width)
        yield from kernels(AFFINE, element, 2, width, shared=True)
    yield from kernels(GAIN, FLOAT32, 1, 64)
    yield from kernels(ADA.formula, FLOAT32, 0, 64)


def column_kernels():
    """Yield the kernels of channels, across rows and along contiguous elements."""
    from numnorm.backends.cuda.columns import moments_kernels as moments
    from numnorm.backends.cuda.columns import norm_kernels as norms
    from numnorm.backends.cuda.columns.column_shape import column_shape
    from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
    from numnorm.layouts import ColumnLayout

    across = {
        "moments": (moments.make_moments_across, 1),
        "forward": (functools.partial(norms.make_elements_across, gradient=False), 1),
        "sums": (norms.make_sums_across, 2),
        "backward": (functools.partial(norms.make_elements_across, gradient=True), 2),
    }
    along = {
        "moments": (moments.make_moments_along, 1),
        "forward": (functools.partial(norms.make_elements_along, gradient=False), 1),
        "sums": (norms.make_sums_along, 2),
        "backward": (functools.partial(norms.make_elements_along, gradient=True), 2),
    }
    # The channels, the inner elements, and whether arrays begin at a multiple of 16 bytes.
    places = {
        "whole": (1024, 3136, True),
        "unaligned": (1024, 3136, False),
        "any": (1001, 49, True),
    }
    for element, (place, (channels, inner, aligned)) in itertools.product(
        ELEMENT_TYPES.values(), places.items()
    ):
        if place != "whole" and element.name not in ("float32", "bfloat16"):
            continue
        kinds = (ColumnLayout(8192, channels, 1), across), (ColumnLayout(32, 64, inner), along)
        for layout, kernels in kinds:
            where = "along" if kernels is along else "across"
            for name, (make, arrays) in kernels.items():
                shape = column_shape(element, layout, aligned=aligned, arrays=arrays)
                yield f"channels {name}, {where}, {element.name}, {place}", make(element, shape)


def weighted_column_kernels():
    """Yield the kernels of channels with a mask or weights."""
    from numnorm.backends.cuda.columns.column_shape import fold_shape
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.threads.row_columns import Weights
    from numnorm.backends.cuda.weighted import column_kernels as weighted
    from numnorm.backends.cuda.weighted.columns import ACROSS, ALONG

    fold = fold_shape(64)
    for element in (FLOAT32, FLOAT64):
        types, of = weighted.ColumnTypes(element, element, FLOAT64), f"{element.name} in float64"
        yield f"weighted channels, pivots, {of}", weighted.make_pivots(element)
        yield f"weighted channels, moved, {of}", weighted.make_update_counted(element)
        kernel = weighted.make_weighted_slopes(element, element, fold)
        yield f"weighted channels, terms backward, {of}", kernel
        for shape in (ACROSS, ALONG):
            what = f"{shape.lanes} × {shape.teams} threads, {of}"
            kernel = weighted.make_first_values(types, shape)
            yield f"weighted channels, first values, {what}", kernel
            for gradient, name in ((False, "moments"), (True, "sums backward")):
                kernel = weighted.make_column_sums(types, shape, gradient=gradient)
                yield f"weighted channels, {name}, {what}", kernel
            kernel = weighted.make_weighted_outputs(types, Weights(element, element), shape)
            yield f"weighted channels, forward, {what}", kernel
            kernel = weighted.make_weighted_dx(types, shape)
            yield f"weighted channels, backward, {what}", kernel
    yield "weighted channels, moments of all parts, float64", weighted.make_moments(fold)
    yield "weighted channels, variance, float64", weighted.make_variance()
    kernel = weighted.make_counted_variance()
    yield "weighted channels, variance by counts, float64", kernel
    yield "weighted channels, moments of two, float64", weighted.make_merged_counted()


def of_one_step(name, kind, spec, what, element, units, *, whole=True):
    """Yield the kernels of one step of a cell, forward and backward."""
    from numnorm.backends.cuda.recurrent import step_kernels
    from numnorm.backends.cuda.recurrent.pass_arrays import cell_shape

    shape = cell_shape(units, element, whole=whole)
    place, kept = "whole" if whole else "any", ", zoneout" if spec.zoneout else ""
    wide = f"{WIDE}{shape.vectors}" if shape.vectors > 1 else ""
    what = f"{what} {element.name}{kept}, {shape.team} × {shape.teams} threads{wide}, {place}"
    yield f"{name} forward {what}", step_kernels.make_cell_forward(kind, spec, element, shape)
    yield f"{name} backward {what}", step_kernels.make_cell_backward(kind, spec, element, shape)


def cell_kernels():
    """Yield the kernels of one step of an LSTM, and of the sums over all steps."""
    from numnorm.backends.cuda.arrays.gather_rows import make_gather_rows
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.recurrent.lstm import STEP
    from numnorm.backends.cuda.recurrent.parameter_gradients import make_cell_sums
    from numnorm.backends.cuda.recurrent.pass_arrays import make_add_sums, make_dropped
    from numnorm.backends.cuda.recurrent.step_kernels import make_added_gradients
    from numnorm.rnn.specs import lstm_spec

    def of_form(element, units, norm, variant, *, whole=True, **options):
        spec = lstm_spec(norm, variant).cell._replace(**options)
        what = f"{norm} {variant}{' projected' if spec.projected else ''}"
        return of_one_step("LSTM", STEP, spec, what, element, units, whole=whole)

    for variant in ("paper", "normalized_cell", "per_gate", "cell_only"):
        yield from of_form(FLOAT32, 1024, "layer", variant)
    for norm in ("rms", "ada", None):
        yield from of_form(FLOAT32, 1024, norm, "paper")
    yield from of_form(FLOAT32, 4096, "layer", "paper")
    for element in (FLOAT32, FLOAT64):
        widest = 512 * element.vector
        yield from of_form(element, 64, "layer", "paper")
        for whole in (True, False):
            yield from of_form(element, widest, "layer", "paper", whole=whole, zoneout=True)
        yield from of_form(element, widest, "layer", "per_gate", whole=False)
        yield from of_form(element, 1024, "layer", "paper", projected=True)
        yield f"gradients of states to project {element.name}", make_added_gradients(element)
        yield f"cell sums {element.name}", make_cell_sums(element, normed=True)
        yield f"cell sums {element.name}, no norm", make_cell_sums(element, normed=False)
        yield f"cell arrays added up {element.name}", make_add_sums(element)
        yield f"cell states dropped {element.name}", make_dropped(element)
        yield f"rows taken {element.name}", make_gather_rows(element, element)


def gru_kernels():
    """Yield the kernels of one step of a GRU."""
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.recurrent.gru import STEP
    from numnorm.rnn.specs import gru_spec

    def of_form(element, units, norm, *, whole=True, zoneout=False):
        spec = gru_spec(norm).cell._replace(zoneout=zoneout)
        return of_one_step("GRU", STEP, spec, norm, element, units, whole=whole)

    for norm in ("layer", "rms", "ada", None):
        yield from of_form(FLOAT32, 1024, norm)
    yield from of_form(FLOAT32, 64, "layer")
    for element in (FLOAT32, FLOAT64):
        for whole in (True, False):
            yield from of_form(element, 512 * element.vector, "layer", whole=whole, zoneout=True)


def reset_gru_kernels():
    """Yield the two kernels of one step of a GRU whose reset gate scales the state."""
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.recurrent.gru_reset import CANDIDATE_STEP, GATES_STEP
    from numnorm.rnn.specs import gru_spec

    def of_form(element, units, norm, *, whole=True, zoneout=False):
        spec = gru_spec(norm, False).cell._replace(zoneout=zoneout)
        for name, step in (("GRU-gates", GATES_STEP), ("GRU-candidate", CANDIDATE_STEP)):
            yield from of_one_step(name, step, spec, norm, element, units, whole=whole)

    for norm in ("layer", "ada", None):
        yield from of_form(FLOAT32, 1024, norm)
    for element in (FLOAT32, FLOAT64):
        for whole in (True, False):
            yield from of_form(element, 512 * element.vector, "layer", whole=whole, zoneout=True)


def plain_cell_kernels():
    """Yield the kernels of one step of a plain recurrent network."""
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.recurrent.rnn import STEP
    from numnorm.rnn.specs import rnn_spec

    def of_form(element, units, norm, nonlinearity, *, whole=True, zoneout=False):
        spec = rnn_spec(norm, nonlinearity).cell._replace(zoneout=zoneout)
        what = f"{norm} {nonlinearity}"
        return of_one_step("RNN", STEP, spec, what, element, units, whole=whole)

    for norm in ("layer", "ada", None):
        yield from of_form(FLOAT32, 1024, norm, "tanh")
    yield from of_form(FLOAT32, 1024, "rms", "relu")
    for element in (FLOAT32, FLOAT64):
        yield from of_form(element, 64, "layer", "tanh")
        widest = 512 * element.vector
        yield from of_form(element, widest, "layer", "tanh", whole=False, zoneout=True)


def layer_kernels():
    """Yield the kernels between layers of recurrent cells."""
    from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
    from numnorm.backends.cuda.recurrent import stacking as between

    for name in ("float32", "bfloat16"):
        yield f"layers side by side {name}", between.make_moved(ELEMENT_TYPES[name])
        yield f"layers masked {name}", between.make_masked(ELEMENT_TYPES[name])
        yield f"layers added {name}", between.make_added(ELEMENT_TYPES[name])


def batch_norm_cell_kernels():
    """Yield the kernels between the norms of one step of an LSTM with batch norm."""
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.recurrent import lstm_batch_norm as between

    for element in (FLOAT32, FLOAT64):
        what = f"of an LSTM with batch norm {element.name}"
        yield f"gates and cell {what}", between.make_gates_and_cell(element)
        yield f"state {what}", between.make_state(element)
        for carries in (False, True):
            carried = ", carried" if carries else ""
            kernel = between.make_state_gradient(element, carries=carries)
            yield f"state gradient {what}{carried}", kernel
            kernel = between.make_cell_gradient(element, carries=carries)
            yield f"cell gradient {what}{carried}", kernel


def persistent_kernels():
    """Yield the kernels of all steps of a recurrent cell, by their plans for a large device."""
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.recurrent.lstm import GATES
    from numnorm.backends.cuda.recurrent.pass_arrays import cell_shape
    from numnorm.backends.cuda.recurrent.persistent.kernels import make_product_statistics
    from numnorm.rnn.specs import lstm_spec

    for variant in ("paper", "normalized_cell", "per_gate", "cell_only"):
        yield from of_all_steps("LSTM", FLOAT32, 64, 512, "layer", variant)
    for norm in ("rms", "ada", None):
        yield from of_all_steps("LSTM", FLOAT32, 32, 256, norm, "paper")
    for element, batch in ((FLOAT32, 64), (FLOAT64, 16)):
        yield from of_all_steps(
            "LSTM", element, 8, 399, "layer", "paper", whole=False, zoneout=True
        )
        yield from of_all_steps("LSTM", element, batch, 512, "layer", "per_gate", zoneout=True)
        norm, shape = lstm_spec("layer", "paper").cell.gates, cell_shape(512, element, whole=True)
        name = f"LSTM statistics of x, layer {element.name}, {shape.team} threads"
        yield name, make_product_statistics(norm, GATES, element, shape)
    yield from of_all_steps("LSTM", FLOAT64, 16, 256, "layer", "paper")
    for kind, choices in (("GRU", ()), ("RNN", ("tanh",))):
        yield from of_all_steps(kind, FLOAT32, 64, 512, "layer", *choices)
        yield from of_all_steps(kind, FLOAT32, 8, 399, "rms", *choices, whole=False, zoneout=True)
        yield from of_all_steps(kind, FLOAT64, 16, 256, "layer", *choices, zoneout=True)


def of_all_steps(kind, element, batch, units, *choices, whole=True, zoneout=False):
    """Yield the kernels of all steps of one spec, forward and backward."""
    from numnorm.backends.cuda.compiler.device_limits import DeviceLimits
    from numnorm.backends.cuda.recurrent import gru, lstm, rnn
    from numnorm.backends.cuda.recurrent.persistent import passes
    from numnorm.backends.cuda.recurrent.persistent.plans import backward_plan, forward_plan
    from numnorm.rnn.specs import gru_spec, lstm_spec, rnn_spec

    spec_of, cell = {
        "LSTM": (lstm_spec, lstm.KIND),
        "GRU": (gru_spec, gru.KIND),
        "RNN": (rnn_spec, rnn.KIND),
    }[kind]
    limits = DeviceLimits(132, 232448, 233472, 2048, 65536, cooperative=True)
    spec = spec_of(*choices).cell._replace(zoneout=zoneout)
    forward = forward_plan(batch, units, cell.gates, element, limits, whole=whole)
    backward = backward_plan(batch, units, cell.gates, element, limits)
    place, kept = "whole" if whole else "any", ", zoneout" if zoneout else ""
    chosen = " ".join(str(choice) for choice in choices)
    what = f"{chosen} {element.name}{kept}, {batch} × {units} units, {place}"
    kernel = passes.forward_kernel(cell, spec, element, forward.shape)
    yield f"{kind}{ALL_STEPS} forward {what}", kernel
    if backward is not None:
        kernel = passes.backward_kernel(cell, spec, element, backward.shape)
        yield f"{kind}{ALL_STEPS} backward {what}", kernel


def statistic_kernels():
    """Yield the kernels of stored statistics."""
    from numnorm.backends.cuda.arrays.row_totals import make_row_totals
    from numnorm.backends.cuda.columns.column_shape import IN_ORDER, fold_shape
    from numnorm.backends.cuda.columns.moments_kernels import make_merged_moments
    from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64
    from numnorm.backends.cuda.statistics import stored as statistics

    yield "statistics reciprocal, float64", statistics.make_reciprocal(FLOAT64)
    yield "statistics reciprocal, float32 to float64", statistics.make_reciprocal(FLOAT32)
    yield "statistics converted, float64 to float32", statistics.make_converted(FLOAT64, FLOAT32)
    yield "statistics root, float64", statistics.make_root(FLOAT64)
    yield "statistics of rows added up, float64", make_row_totals(FLOAT64, FLOAT64)
    yield "statistics of rows added up, float32", make_row_totals(FLOAT32, FLOAT32)
    yield "statistics of two, float64", statistics.make_two_moments()
    yield "statistics merged in a tree, float64", make_merged_moments(fold_shape(64))
    yield "statistics merged in order, float64", make_merged_moments(IN_ORDER)


def broadcast_kernels():
    """Yield the kernels of gammas and betas that broadcast, whose gradients are float64 sums."""
    from numnorm.backends.cuda.arrays.row_totals import make_row_totals
    from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32, FLOAT64
    from numnorm.backends.cuda.statistics import broadcast_kernels as gains

    for element in ELEMENT_TYPES.values():
        wide = FLOAT64 if element is FLOAT64 else FLOAT32
        for axes in (1, 4):
            kinds = wide, element, element, element, element
            yield f"gains of {axes} axes {element.name}", gains.make_gained(*kinds, axes)
            kernel = gains.make_gained(element, element, None, element, wide, axes)
            yield f"gains of {axes} axes backward {element.name}", kernel
    for element, axes in itertools.product((FLOAT32, FLOAT64), (1, 3)):
        what = f"{element.name} in float64, {axes} axes"
        kinds = element, element, FLOAT64, axes, axes
        yield f"sums of gains backward {what}", gains.make_broadcast_sums(*kinds)
        kinds = element, None, FLOAT64, axes, axes
        yield f"distances from means backward {what}", gains.make_broadcast_sums(*kinds)
    yield "lost digits of means backward float64", gains.make_lost_means(FLOAT64)
    yield "statistics of rows added up, float64 to float32", make_row_totals(FLOAT64, FLOAT32)


def user_kernels():
    """Yield kernels of users, with the device functions for rows."""
    import user_kernels

    yield from user_kernels.kernels()


FAMILIES = (
    row_kernels,
    row_gradient_kernels,
    wide_row_gradient_kernels,
    moving_kernels,
    weighted_row_kernels,
    column_kernels,
    weighted_column_kernels,
    statistic_kernels,
    broadcast_kernels,
    user_kernels,
    cell_kernels,
    gru_kernels,
    reset_gru_kernels,
    plain_cell_kernels,
    layer_kernels,
    batch_norm_cell_kernels,
    persistent_kernels,
)


def first_of_each_source(kernels):
    """Return the first kernel of each source function, direction and kind.

    One source makes the kernels of all kinds of cells; a name begins with the kind.
    """
    firsts = {}
    for name, kernel in kernels:
        function, kind = kernel.function, name.partition(" ")[0]
        source = function.__module__, function.__qualname__, "backward" in name, kind
        firsts.setdefault(source, (name, kernel))
    return list(firsts.values())


def of_piece(capabilities, piece, sampled):
    """Return the reports on one piece of all kernels by capability and name."""
    import sass

    # Neighbours share functions, which are typed once for all capabilities: a piece has no gaps.
    kernels = [named for family in FAMILIES for named in family()]
    kernels = first_of_each_source(kernels) if sampled else kernels
    first, last = (number * len(kernels) // PIECES for number in (piece, piece + 1))
    told = {capability: {} for capability in capabilities}
    for name, kernel in kernels[first:last]:
        for capability in capabilities:
            numbers = tuple(int(part) for part in capability.split("."))
            with sass.pretended_device(numbers):
                told[capability][name] = sass.report(kernel, numbers)
    return told


def of_all(capabilities, *, sampled=False):
    """Return the reports on every kernel for each capability, each piece from a new process.

    With `sampled`, only one kernel of each source and direction is compiled.
    """
    told = {capability: {} for capability in capabilities}
    compile_piece = functools.partial(_in_new_process, capabilities, sampled)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # The last piece takes longest, so it begins first.
        pieces = [*pool.map(compile_piece, reversed(range(PIECES)))]
    for found in reversed(pieces):
        for capability in capabilities:
            told[capability].update(found[capability])
    return told


def _in_new_process(capabilities, sampled, piece):
    script = str(Path(__file__).resolve())
    command = [sys.executable, script, *capabilities, "--piece", str(piece)]
    command += ["--sampled"] if sampled else []
    told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode:
        raise RuntimeError(told.stderr[-2000:])
    return json.loads(told.stdout)


def matching(operations, *prefixes):
    """Return how many operations in the code begin with one of the prefixes."""
    return sum(n for name, n in operations.items() if name.startswith(prefixes))


def wide(operations, prefix):
    """Return the numbers of accesses of 16 bytes and of less."""
    widest = sum(n for name, n in operations.items() if name.startswith(prefix) and "128" in name)
    return widest, matching(operations, prefix) - widest


def markdown(tables):
    """Return the reports as a page with one table."""
    from rich.box import MARKDOWN
    from rich.console import Console
    from rich.table import Table

    table = Table(box=MARKDOWN)
    columns = ("kernel", "sm", "registers", "stack", "loads", "stores", "float64", "barriers")
    for column in columns:
        table.add_column(column, justify="left" if column == "kernel" else "right", no_wrap=True)
    for capability, kernels in tables.items():
        for name, found in kernels.items():
            operations = found["operations"]
            accesses = (f"{w} + {n}" for w, n in (wide(operations, p) for p in ("LDG", "STG")))
            counts = matching(operations, *DOUBLE), matching(operations, "BAR")
            table.add_row(
                name, capability, str(found["registers"]), str(found["stack"]), *accesses,
                *(str(count) for count in counts),
            )  # fmt: skip
    text = io.StringIO()
    Console(file=text, width=1000, markup=False, highlight=False).print(table)
    return HEAD + "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines()) + "\n"


DOUBLE = ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capabilities", nargs="*", default=CAPABILITIES)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--piece", type=int, choices=range(PIECES), help="only a part of them")
    parser.add_argument("--sampled", action="store_true", help="only one kernel of each source")
    options = parser.parse_args()
    if options.piece is not None:
        print(json.dumps(of_piece(options.capabilities, options.piece, options.sampled)))
        return
    tables = of_all(options.capabilities, sampled=options.sampled)
    if options.markdown is None:
        print(json.dumps(tables))
    else:
        options.markdown.write_text(markdown(tables), "utf-8")


if __name__ == "__main__":
    main()

"""The report of the comparison: tables in Markdown."""

from __future__ import annotations

import statistics
from dataclasses import fields
from typing import Any

from .cases import BATCHES, CHUNKS, ERROR, HALFLIFE, MOST, Case
from .libraries import APART, COMPILED, FLOOR, YARDSTICKS
from .rounds import Record

OWN = "numnorm"
# The number of processors busy with other processes above which a time counts as disturbed.
DISTURBING = 0.3

_HOW_TO_READ = f"""\
Each cell is the time of a call in microseconds: the median of the rounds, ± half the distance
between their quartiles, and in brackets the ratio to {OWN}'s median: above 1 means slower than
{OWN}. The last column is {OWN}'s time as a multiple of `{FLOOR}`, a copy of the input by NumPy
with one thread. A backward pass reads two arrays and writes one, so that its lower bound is closer
to two copies. An empty cell: the library has no such function. **wrong**: its result differs from
the definition, so that its time means nothing.

`forward` and `backward` return new arrays, `forward out=` writes into an existing one.
`standardize` is a layer norm without gain, bias and epsilon. AdaNorm in PyTorch is a few lines of
its functions; JAX and NumPy run the definitions as they are. Every library has its own process, and
the processes take turns.

The cases of recurrent cells are whole sequences: steps × sequences × inputs × units. `forward`
saves nothing for a gradient; `forward and backward` computes all gradients, including that of the
input. `torch_nn` is `torch.nn.LSTM` without norms; the last column is {OWN}'s time as a multiple of
its time. `ln_lstm` is the LSTM of Ba, Kiros and Hinton (2016), in `torch` a loop over the steps.

The cases of estimators are `fit_transform` of spectra, samples × wavelengths; scikit-learn's is
`StandardScaler`, and NumPy's the definition.

The cases of moving norms are recordings: steps × channels, normalized along the steps by windows of
the last steps or by statistics that fade; `_last` is channels × steps. Libraries that have moving
means and deviations get one line of arithmetic to normalize with; of pandas, the data is a data
frame. `torchaudio` is the definition of its `sliding_window_cmn`, a loop in PyTorch, and
`braindecode` that of its `exponential_moving_standardize`, by SciPy's `lfilter`. NumPy's is a
difference of cumulative sums. Full windows are compared with the definition.

The cases of order are channels × steps, less the median of a window of the last steps, and divided
by the distance of its quartiles in `moving_quartiles`.

Of incomplete data a tenth is missing: NaN (`rows_nan`, `columns_nan`) or under a mask
(`rows_where`). There is no gain, no bias and no epsilon.

The cases of labels are samples × features with one of 12 labels for each sample, such as months:
`labels_statistics` are the mean and the deviation of each label, `labels_norm` the samples
normalized by those of their label. There is no epsilon. xarray's `groupby` goes without flox, which
has its own column.

The inverse is the way back: a forecast, samples × channels × steps or rows, times the deviation
of its row plus the mean, and `_features` the same by features. numnorm takes float64 statistics, as
it saves them, and the others those in the dtype of the forecast, in one line of arithmetic.

Robust norms of rows or columns are centred by the median and scaled by the median absolute
deviation of normal data (`mad`), by the interquartile range (`iqr`), or not at all (`median`), NaN
left out. scikit-learn's are `robust_scale` and `RobustScaler`, NumPy's `nanmedian` and
`nanpercentile`; SciPy's `median_abs_deviation` gets its median from NumPy.

The cases of times are irregular steps × channels, a minute apart on average, beside a data frame of
pandas with the same times: windows of some minutes, and weights with a half-life of {HALFLIFE}
minutes.

Quantiles are 0.25, 0.5 and 0.75 of each feature, samples × features, or the median and the
interquartile range (`median_iqr`). scikit-learn's are what `QuantileTransformer` and `RobustScaler`
keep. In `quantiles_chunks` numnorm has {CHUNKS} chunks in turn, and the others the whole array; in
`quantiles_error` an error of rank of {ERROR} is allowed, twice as much is **wrong**, and Dask's is
`da.percentile`, which merges quantiles of chunks. In `quantiles_dask` both get chunks of Dask.

Sparse matrices are samples × features, CSR and CSC: mean and variance of each feature (`moments`),
the stored values by their deviation, up to {MOST:g} (`scaled`), and the same in {BATCHES} batches,
for the others a loop (`batches`). scikit-learn's are `mean_variance_axis` and `StandardScaler`; the
formula of scanpy's `scale` is written in SciPy. `{FLOOR}` copies the matrix.

The last tables are of compiled code, with ratios to their first column: numnorm.jax under
`jax.jit` beside the definitions in JAX, and numnorm in a function of Numba beside plain loops in
three passes, both with one thread.
"""


def markdown(result: dict[str, Any]) -> str:
    """Return the whole report of a result of `__main__`."""
    parts = ["# numnorm and its peers on the CPU", _HOW_TO_READ, _facts(result)]
    parts += _comparison(result, OWN, [n for n in result["libraries"] if n not in APART])
    for own, other in COMPILED.items():
        parts += _comparison(result, own, [own, other, FLOOR])
    notes = _notes(result)
    if notes:
        parts.append("## What was not timed\n\n" + "\n".join(f"- {note}" for note in notes) + "\n")
    return "\n".join(filter(None, parts))


def _comparison(result: dict[str, Any], own: str, names: list[str]) -> list[str]:
    """Return the tables of some libraries; all but `OWN` have the cases that they support."""
    records = [record for record in result["records"] if record["library"] in names]
    beside = ""
    if own != OWN:
        timed = {case_of(r) for r in records if r["library"] == own and _cell(r)}
        records = [record for record in records if case_of(record) in timed]
        beside = f": {own}"
    parts = [_summary(records, own, names)]
    for threads in sorted({record["threads"] for record in records}):
        chosen: dict[tuple[str, str], list[Record]] = {}
        for record in records:
            if record["threads"] == threads:
                case = case_of(record)
                chosen.setdefault((case.family, case.kind), []).append(record)
        for (family, kind), same in chosen.items():
            plural = "" if threads == 1 else "s"
            parts.append(f"## {family.capitalize()}, {kind}, {threads} thread{plural}{beside}\n")
            parts.append(_table(same, names, own, YARDSTICKS[family]))
    return parts


def case_of(record: Record) -> Case:
    """Return the case of a record."""
    # Older results lack the last of them.
    case = {f.name: record[f.name] for f in fields(Case) if f.name in record}
    return Case(**{**case, "shape": tuple(record["shape"])})


def ratio(record: Record | None, to: Record | None) -> float | None:
    """Return the time of a record as a multiple of that of `to`, if both were timed."""
    if record is None or to is None or "seconds" not in record or "seconds" not in to:
        return None
    return float(record["seconds"] / to["seconds"])


def _facts(result: dict[str, Any]) -> str:
    machine = [f"- {name}: {value}" for name, value in result["machine"].items()]
    packages = ", ".join(f"{name} {number}" for name, number in sorted(_packages(result).items()))
    lines = [*machine, f"- rounds: {result['rounds']}", f"- versions: {packages}"]
    return "\n".join([*lines, f"- other processes: {_others(result['records'])}", ""])


def _others(records: list[Record]) -> str:
    """Return the load of the machine by other processes, in words."""
    loads = [r["foreign_load"] for r in records if r.get("foreign_load") is not None]
    if not loads:
        return "not known"
    disturbed = sum(load > DISTURBING for load in loads) / len(loads)
    text = f"{statistics.median(loads):.1f} processors busy, at most {max(loads):.1f}"
    if disturbed:
        # A thread that is not scheduled delays all threads at the next barrier.
        text += f"; **{disturbed:.0%} of the times were disturbed**, most those of several threads"
    return text


def _packages(result: dict[str, Any]) -> dict[str, str]:
    greetings = result["libraries"].values()
    return {
        name: number
        for greeting in greetings
        for name, number in greeting.get("versions", {}).items()
    }


def _summary(records: list[Record], own: str, names: list[str]) -> str:
    """Return a table of the ratios of each norm, over all shapes."""
    records = [record for record in records if "seconds" in record]
    of_own = {(r["threads"], case_of(r)): r for r in records if r["library"] == own}
    ratios: dict[str, dict[str, list[float]]] = {}
    for record in records:
        case, threads = case_of(record), record["threads"]
        times = ratio(record, of_own.get((threads, case)))
        if times is not None and record["library"] not in (own, FLOOR):
            plural = "" if threads == 1 else "s"
            row = f"{case.norm} {case.dtype} {case.kind}, {threads} thread{plural}"
            ratios.setdefault(row, {}).setdefault(record["library"], []).append(times)
    present = [name for name in names if any(name in row for row in ratios.values())]
    if not present:
        return ""
    rows = [[row, *(_range(of.get(name)) for name in present)] for row, of in ratios.items()]
    title = f"## How many times as long as {own}: geometric mean over the shapes, least to most\n"
    return f"{title}\n{as_markdown(['norm', *present], rows)}"


def _range(ratios: list[float] | None) -> str:
    if not ratios:
        return ""
    mean = _times(statistics.geometric_mean(ratios))
    return mean if len(ratios) == 1 else f"{mean} ({min(ratios):.2f} to {max(ratios):.2f})"


def _table(records: list[Record], names: list[str], own: str, yardstick: str) -> str:
    present = [name for name in names if any(_cell(r) for r in records if r["library"] == name)]
    rows = []
    for label in dict.fromkeys(case_of(record).label for record in records):
        row = {r["library"]: r for r in records if case_of(r).label == label}
        of_own = row.get(own)
        cells = [_cell(row[name], of_own) if name in row else "" for name in present]
        rows.append([label, *cells, _times(ratio(of_own, row.get(yardstick)))])
    return as_markdown(["case", *present, f"{own} / {yardstick}"], rows)


def as_markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown, its first column left-aligned and the others right-aligned."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        [f"{cell:{'>' if i else '<'}{widths[i]}}" for i, cell in enumerate(row)]
        for row in (header, *rows)
    ]
    rule = "|".join("-" * (width + 2) for width in widths)
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], f"|{rule}|", *texts[1:]]) + "\n"


def _cell(record: Record, of_own: Record | None = None) -> str:
    if record["status"] == "missing":
        return ""
    if "seconds" not in record:
        return f"**{record['status']}**"
    low, high = (quartile * 1e6 for quartile in record["quartiles"])
    cell = f"{significant(record['seconds'] * 1e6)} ± {significant((high - low) / 2, 1)}"
    apart = record is of_own or record["library"] == FLOOR
    times = "" if apart else _times(ratio(record, of_own))
    return f"{cell} ({times})" if times else cell


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×"


def significant(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, never with an exponent."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:g}"


def _notes(result: dict[str, Any]) -> list[str]:
    """Return why cells are missing: libraries that did not start, wrong results, errors."""
    notes = [
        f"{name}: {greeting['detail']}"
        for name, greeting in result["libraries"].items()
        if greeting["status"] != "ready"
    ]
    for record in result["records"]:
        if record["status"] in ("wrong", "failed"):
            threads = f"{record['threads']} thread{'' if record['threads'] == 1 else 's'}"
            case = f"{case_of(record).name}, {threads}"
            notes.append(f"{record['library']}, {case}: {record['status']}, {record['detail']}")
    return notes

"""The comparison with other libraries, from the results in `asv_benchmarks/peers/results`."""

import json
import statistics
import sys
from pathlib import Path

from matplotlib.figure import Figure

BENCHMARKS = Path(__file__).parents[2] / "asv_benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from peers.libraries import APART, FLOOR
from peers.report import OWN, case_of, ratio

STYLES = {
    "torch": ("PyTorch", "C1", "s"),
    "torch_nn": ("torch.nn.LSTM, without norm", "C4", "D"),
    "onnxruntime": ("ONNX Runtime", "C2", "^"),
    "jax": ("JAX", "C3", "v"),
    "scipy": ("SciPy", "#56B4E9", "P"),
    "sklearn": ("scikit-learn", "#E69F00", "X"),
    "numpy": ("NumPy", "C0", "o"),
    "chemotools": ("chemotools", "#999933", "d"),
}
WORDS = {
    "layer_norm": "layer norm",
    "standardize": "no ε, γ, β",
    "batch_norm_inference": "batch norm, inference",
    "ln_lstm": "LSTM with layer norm",
    "lstm": "LSTM without norm",
    "forward out=": "into out",
    "forward and backward": "both ways",
}


def compared(results, family):
    """Draw how many times as long libraries take: a mark for each, a line from least to most."""
    rows = ratios(results, family)
    figure = Figure(figsize=(4.9, 1.2 + 0.34 * len(rows)), layout="constrained")
    panel = figure.subplots()
    panel.axvline(1, color="C4", linewidth=1.5)
    for place, of_row in enumerate(rows.values()):
        for n, (library, values) in enumerate(of_row.items()):
            label, color, marker = STYLES[library]
            height = place + 0.11 * (n - (len(of_row) - 1) / 2)
            panel.plot([min(values), max(values)], [height] * 2, color=color, linewidth=1.2)
            mean = statistics.geometric_mean(values)
            panel.plot(mean, height, marker, color=color, markersize=6, label=label)
    panel.set(xscale="log", yticks=range(len(rows)), ylim=(len(rows) - 0.4, -0.6),
              xlabel="time / time of numnorm")  # fmt: skip
    panel.set_yticklabels(rows)
    panel.xaxis.set_major_formatter("{x:g}")
    for place in range(len(rows) - 1):
        panel.axhline(place + 0.5, color="C4", linewidth=0.4, alpha=0.6)
    panel.grid(axis="x", alpha=0.3)
    marks = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(marks.values(), marks, loc="outside upper center", ncols=3, fontsize="small")
    return figure


def ratios(results, family):
    """Return the times as multiples of numnorm's, for each row of the picture and each library."""
    records = json.loads((BENCHMARKS / "peers/results" / results / "peers.json").read_text("utf-8"))
    records = [record for record in records["records"] if case_of(record).family == family]
    own = {(r["threads"], case_of(r)): r for r in records if r["library"] == OWN}
    rows = {}
    for record in records:
        case = case_of(record)
        times = ratio(record, own.get((record["threads"], case)))
        if times is None or record["library"] in (OWN, FLOOR, *APART):
            continue
        norm = WORDS.get(case.norm, case.norm.replace("_", " "))
        kind = WORDS.get(case.kind, case.kind)
        dtype = "" if case.dtype == "float32" else f"{case.dtype} "
        label = f"{norm}, {dtype}{kind}"
        rows.setdefault(label, {}).setdefault(record["library"], []).append(times)
    return rows

"""The public functions that compiled code can call, and which module compiles each."""

# ``numnorm.numba.rows.layer_norm`` compiles calls of ``numnorm.layer_norm``.
_PASSES = "", "_forward", "_backward"
HOMES: dict[str, str] = {
    "batch_moments": "moments",
    **{"batch_norm" + end: "columns" for end in _PASSES},
    **{name + end: "rows" for name in ("layer_norm", "rms_norm") for end in _PASSES},
    "standard_normal_variate": "rows",
    **{"ada_norm" + end: "ada" for end in _PASSES},
    **{name + end: "groups" for name in ("group_norm", "instance_norm") for end in _PASSES},
    **{"weight_norm" + end: "weight" for end in _PASSES},
    **{f"rnn.{name}_cell": "cells" for name in ("lstm", "gru", "rnn")},
}

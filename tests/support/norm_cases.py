"""Norms with options and shapes, for each way to view an array as rows or columns."""

import functools

import kernels
from norm_checks import Norm

NORMS = {
    "layer": Norm("layer_norm", (7, 33)),
    "layer-vector": Norm("layer_norm", (33,)),
    "layer-first-axis": Norm("layer_norm", (7, 5), {"axis": 0}),
    "layer-middle-axis": Norm("layer_norm", (2, 7, 5), {"axis": 1}),
    "layer-two-axes": Norm("layer_norm", (3, 4, 5), {"axis": (1, 2)}),
    "layer-axes-apart": Norm("layer_norm", (3, 4, 5), {"axis": (0, 2), "eps": 0.5}),
    "layer-negative-axes": Norm("layer_norm", (3, 4, 5, 2), {"axis": (-1, -3)}),
    "layer-unordered-axes": Norm("layer_norm", (3, 4, 5), {"axis": (2, -2)}),
    "layer-all-axes": Norm("layer_norm", (3, 4, 5), {"axis": (0, 1, 2), "eps": 0}),
    "layer-width-one": Norm("layer_norm", (5, 1)),
    "layer-mean-detached": Norm("layer_norm", (7, 33), {}, {"detach": "mean"}),
    "layer-scale-detached": Norm("layer_norm", (7, 33), {}, {"detach": "scale"}),
    "layer-both-detached": Norm("layer_norm", (3, 4, 5), {"axis": (0, 2)}, {"detach": "both"}),
    "rms": Norm("rms_norm", (7, 33)),
    "rms-vector": Norm("rms_norm", (33,)),
    "rms-axes-apart": Norm("rms_norm", (3, 4, 5), {"axis": (-1, 0), "eps": 0.5}),
    "rms-width-one": Norm("rms_norm", (5, 1), {"eps": 0}),
    "ada": Norm("ada_norm", (7, 33)),
    "ada-authors": Norm("ada_norm", (7, 33), {"eps_in": "std", "ddof": 1, "scale": 0.8}),
    "ada-all-options": Norm(
        "ada_norm",
        (3, 4, 5),
        {"axis": (0, 2), "eps_in": "std", "eps": 0.5, "ddof": 3, "scale": 2.0, "k": -0.3},
        {"detach_factor": False},
    ),
    "ada-flowing-factor": Norm("ada_norm", (7, 33), {"k": 0.4}, {"detach_factor": False}),
    "ada-width-one": Norm("ada_norm", (5, 1)),
    "variate": Norm("standard_normal_variate", (7, 33)),
    "variate-sample-deviation": Norm("standard_normal_variate", (7, 5), {"axis": 0, "ddof": 1}),
    "variate-axes-apart": Norm("standard_normal_variate", (3, 4, 5), {"axis": (0, 2), "ddof": 3}),
    "batch": Norm("batch_norm", (17, 5)),
    "batch-images": Norm("batch_norm", (4, 5, 3, 2)),
    "batch-last-axis": Norm("batch_norm", (4, 3, 2, 5), {"channel_axis": -1, "eps": 0.5}),
    "batch-first-axis": Norm("batch_norm", (5, 17), {"channel_axis": 0}),
    "batch-third-axis": Norm("batch_norm", (3, 2, 5, 4), {"channel_axis": -2, "eps": 0}),
    "batch-of-one": Norm("batch_norm", (1, 5)),
    # Rows of more than 4096 bytes, processed in groups except the last ones.
    "batch-in-groups": Norm("batch_norm", (35, 1029)),
    "group": Norm("group_norm", (3, 6, 5), {"groups": 3}),
    "group-flat": Norm("group_norm", (3, 6), {"groups": 2}),
    "group-last-axis": Norm("group_norm", (3, 5, 2, 6), {"groups": 2, "channel_axis": -1}),
    "group-third-axis": Norm("group_norm", (3, 5, 6, 2), {"groups": 3, "channel_axis": 2}),
    "group-one": Norm("group_norm", (3, 4, 5), {"groups": 1, "eps": 0}),
    "group-each-channel": Norm("group_norm", (3, 4, 5), {"groups": 4, "eps": 0.5}),
    "group-width-one": Norm("group_norm", (3, 4), {"groups": 4}),
    "instance": Norm("instance_norm", (3, 4, 5)),
    "instance-last-axis": Norm("instance_norm", (3, 5, 2, 4), {"channel_axis": -1, "eps": 0.5}),
    "weight": Norm("weight_norm", (4, 9)),
    "weight-vector": Norm("weight_norm", (9,)),
    "weight-first-axis": Norm("weight_norm", (4, 9), {"axis": 0}),
    "weight-kernels": Norm("weight_norm", (4, 3, 2, 2), {"axis": (1, 2, 3)}),
    "weight-axes-apart": Norm("weight_norm", (4, 3, 5), {"axis": (-1, 0)}),
    "weight-all-axes": Norm("weight_norm", (4, 3), {"axis": (0, 1)}),
    "weight-width-one": Norm("weight_norm", (5, 1)),
}
# One norm for each way to view an array as rows or columns.
FEW = ["layer", "layer-axes-apart", "rms", "ada", "batch", "batch-images", "group"]
FEW += ["group-last-axis", "instance", "weight", "weight-first-axis"]
WITH_GAMMA = [name for name in FEW if name != "ada"]

few_norms = functools.partial(kernels.each, {name: NORMS[name].name for name in FEW})
norms_with_gamma = functools.partial(kernels.each, {name: NORMS[name].name for name in WITH_GAMMA})

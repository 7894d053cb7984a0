"""Recurrent cells with normalization, forward and backward through time."""

import sys

from numnorm.rnn.batch_statistics import LSTMStatistics, RecurrentBatchNorm, lstm_statistics_init
from numnorm.rnn.conversions.haste import gru_from_haste, lstm_from_haste
from numnorm.rnn.conversions.keras import (
    gru_from_keras,
    gru_to_keras,
    layers_from_keras,
    lstm_from_keras,
    lstm_to_keras,
    rnn_from_keras,
    rnn_to_keras,
)
from numnorm.rnn.conversions.onnx import (
    gru_from_onnx,
    gru_to_onnx,
    lstm_from_onnx,
    lstm_to_onnx,
    rnn_from_onnx,
    rnn_to_onnx,
)
from numnorm.rnn.conversions.tensorflow_addons import lstm_from_tfa, rnn_from_tfa
from numnorm.rnn.conversions.torch import (
    gru_from_torch,
    gru_to_torch,
    lstm_from_torch,
    lstm_to_torch,
    rnn_from_torch,
    rnn_to_torch,
)
from numnorm.rnn.conversions.torch_layers import layers_from_torch
from numnorm.rnn.elman import (
    rnn,
    rnn_backward,
    rnn_cell,
    rnn_cell_backward,
    rnn_cell_forward,
    rnn_forward,
    rnn_pack,
)
from numnorm.rnn.files import load, load_parameters, save
from numnorm.rnn.gru import (
    gru,
    gru_backward,
    gru_cell,
    gru_cell_backward,
    gru_cell_forward,
    gru_forward,
    gru_pack,
)
from numnorm.rnn.initial import gru_init, lstm_init, rnn_init
from numnorm.rnn.lstm import (
    lstm,
    lstm_backward,
    lstm_cell,
    lstm_cell_backward,
    lstm_cell_forward,
    lstm_forward,
    lstm_pack,
)
from numnorm.rnn.parameters import (
    GRUParameters,
    LSTMParameters,
    ProjectedLSTMParameters,
    RNNParameters,
)
from numnorm.rnn.passes import Packed
from numnorm.rnn.persistent import persistent_kernels
from numnorm.rnn.results import (
    GRUCellForward,
    GRUForward,
    GRUGradients,
    GRUStates,
    LSTMCellForward,
    LSTMForward,
    LSTMGradients,
    LSTMState,
    LSTMStates,
    RNNCellForward,
    RNNForward,
    RNNGradients,
    RNNStates,
    Stacked,
    StackedForward,
    StackedGradients,
)
from numnorm.rnn.stacked import stacked, stacked_backward, stacked_forward

__all__ = [
    "GRUCellForward",
    "GRUForward",
    "GRUGradients",
    "GRUParameters",
    "GRUStates",
    "LSTMCellForward",
    "LSTMForward",
    "LSTMGradients",
    "LSTMParameters",
    "LSTMState",
    "LSTMStates",
    "LSTMStatistics",
    "Packed",
    "ProjectedLSTMParameters",
    "RNNCellForward",
    "RNNForward",
    "RNNGradients",
    "RNNParameters",
    "RNNStates",
    "RecurrentBatchNorm",
    "Stacked",
    "StackedForward",
    "StackedGradients",
    "gru",
    "gru_backward",
    "gru_cell",
    "gru_cell_backward",
    "gru_cell_forward",
    "gru_forward",
    "gru_from_haste",
    "gru_from_keras",
    "gru_from_onnx",
    "gru_from_torch",
    "gru_init",
    "gru_pack",
    "gru_to_keras",
    "gru_to_onnx",
    "gru_to_torch",
    "layers_from_keras",
    "layers_from_torch",
    "load",
    "load_parameters",
    "lstm",
    "lstm_backward",
    "lstm_cell",
    "lstm_cell_backward",
    "lstm_cell_forward",
    "lstm_forward",
    "lstm_from_haste",
    "lstm_from_keras",
    "lstm_from_onnx",
    "lstm_from_tfa",
    "lstm_from_torch",
    "lstm_init",
    "lstm_pack",
    "lstm_statistics_init",
    "lstm_to_keras",
    "lstm_to_onnx",
    "lstm_to_torch",
    "persistent_kernels",
    "rnn",
    "rnn_backward",
    "rnn_cell",
    "rnn_cell_backward",
    "rnn_cell_forward",
    "rnn_forward",
    "rnn_from_keras",
    "rnn_from_onnx",
    "rnn_from_tfa",
    "rnn_from_torch",
    "rnn_init",
    "rnn_pack",
    "rnn_to_keras",
    "rnn_to_onnx",
    "rnn_to_torch",
    "save",
    "stacked",
    "stacked_backward",
    "stacked_forward",
]

if "numnorm.numba" in sys.modules:  # Numba is in use
    sys.modules["numnorm.numba"].init()

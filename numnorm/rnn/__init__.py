"""Recurrent cells with normalization, forward and backward through time."""

from numnorm.rnn.batch_statistics import (
    LSTMStatistics,
    RecurrentBatchNorm,
    lstm_statistics_init,
)
from numnorm.rnn.conversions import (
    lstm_from_onnx,
    lstm_from_torch,
    lstm_to_onnx,
    lstm_to_torch,
)
from numnorm.rnn.lstm import (
    LSTMForward,
    LSTMGradients,
    LSTMPacked,
    LSTMState,
    LSTMStates,
    lstm,
    lstm_backward,
    lstm_cell,
    lstm_forward,
    lstm_pack,
)
from numnorm.rnn.parameters import LSTMParameters, lstm_init

__all__ = [
    "LSTMForward",
    "LSTMGradients",
    "LSTMPacked",
    "LSTMParameters",
    "LSTMState",
    "LSTMStates",
    "LSTMStatistics",
    "RecurrentBatchNorm",
    "lstm",
    "lstm_backward",
    "lstm_cell",
    "lstm_forward",
    "lstm_from_onnx",
    "lstm_from_torch",
    "lstm_init",
    "lstm_pack",
    "lstm_statistics_init",
    "lstm_to_onnx",
    "lstm_to_torch",
]

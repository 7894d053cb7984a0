"""Recurrent cells with normalization, forward and backward through time."""

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
from numnorm.rnn.stacked import (
    Stacked,
    StackedForward,
    StackedGradients,
    stacked,
    stacked_backward,
    stacked_forward,
)
from numnorm.rnn.torch_layers import layers_from_torch

__all__ = [
    "LSTMForward",
    "LSTMGradients",
    "LSTMPacked",
    "LSTMParameters",
    "LSTMState",
    "LSTMStates",
    "Stacked",
    "StackedForward",
    "StackedGradients",
    "layers_from_torch",
    "lstm",
    "lstm_backward",
    "lstm_cell",
    "lstm_forward",
    "lstm_from_onnx",
    "lstm_from_torch",
    "lstm_init",
    "lstm_pack",
    "lstm_to_onnx",
    "lstm_to_torch",
    "stacked",
    "stacked_backward",
    "stacked_forward",
]

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
    LSTMStates,
    lstm,
    lstm_backward,
    lstm_forward,
)
from numnorm.rnn.parameters import LSTMParameters, lstm_init

__all__ = [
    "LSTMForward",
    "LSTMGradients",
    "LSTMParameters",
    "LSTMStates",
    "lstm",
    "lstm_backward",
    "lstm_forward",
    "lstm_from_onnx",
    "lstm_from_torch",
    "lstm_init",
    "lstm_to_onnx",
    "lstm_to_torch",
]

"""The LSTM: its gates, row functions and `CellKind`, and its passes with batch norm."""

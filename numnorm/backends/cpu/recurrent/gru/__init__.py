"""The gated recurrent unit: its gates, row functions and `CellKind`."""

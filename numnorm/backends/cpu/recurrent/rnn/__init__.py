"""The plain recurrent network: its row functions and `CellKind`."""

"""Code of all recurrent cells on a device: norms inside a cell, their gradients, zoneout."""

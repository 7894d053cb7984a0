"""What all recurrent cells share on a device: norms inside a cell, their gradients, zoneout."""

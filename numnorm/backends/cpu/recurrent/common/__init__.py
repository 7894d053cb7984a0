"""What all recurrent cells share: a norm inside a cell, steps, zoneout, weight gradients."""

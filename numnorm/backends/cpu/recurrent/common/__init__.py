"""Parts of all recurrent cells: norms, steps, zoneout, weight gradients, whole passes."""

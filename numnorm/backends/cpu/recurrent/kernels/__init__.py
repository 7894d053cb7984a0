"""The forward and the backward kernel of all recurrent cells, and the groups of their arguments."""

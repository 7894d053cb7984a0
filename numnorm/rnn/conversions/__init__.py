"""Parameters of recurrent cells from and to the layouts of other libraries."""

"""The interface of a backend, and the descriptions of norms and recurrent cells that it takes."""

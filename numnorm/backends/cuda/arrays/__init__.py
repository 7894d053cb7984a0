"""Device arrays of all libraries, launches on their streams, gathered rows."""

"""What each norm is: one file a norm, with its public functions and its scalar maps."""

"""What a norm or a recurrent cell hands to a backend, and what a backend offers."""

"""What is tracked over time; run `asv` in the folder above."""

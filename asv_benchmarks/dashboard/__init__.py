"""asv's dashboard of the recorded results; run ``python -m dashboard FOLDER`` one folder above."""

"""Recurrent cells with normalization on a device."""

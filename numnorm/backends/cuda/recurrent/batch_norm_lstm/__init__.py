"""The LSTM with recurrent batch norm on a device."""

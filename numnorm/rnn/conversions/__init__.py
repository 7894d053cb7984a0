"""Parameters of recurrent cells from and to the layouts of PyTorch and ONNX."""

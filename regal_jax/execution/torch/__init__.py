"""Plans of PyTorch modules, run by PyTorch."""

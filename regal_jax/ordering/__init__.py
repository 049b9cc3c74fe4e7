"""Orders of ops on one device, for the least peak memory (Gagrani et al., NeurIPS 2022)."""

"""JAX functions on several devices, as a plan says."""

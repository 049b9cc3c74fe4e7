"""JAX programs in orders that take less memory."""

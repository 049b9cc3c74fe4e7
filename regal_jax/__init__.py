"""Placement and scheduling of computation graphs."""

"""Files: atomic writes, strict parsing, locks, and lists that survive a killed process."""

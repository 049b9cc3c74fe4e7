"""Files: written whole or not at all, read strictly, one writer at a time; lists that survive a kill."""

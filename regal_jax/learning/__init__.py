"""Training of policies by REINFORCE through the search itself."""

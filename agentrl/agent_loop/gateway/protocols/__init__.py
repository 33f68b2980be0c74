"""Wire protocols in which agents call the policy."""

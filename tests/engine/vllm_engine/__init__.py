"""A package, unlike its neighbours, because one engine serves all tests in it and ends with them (fixtures of this scope)."""

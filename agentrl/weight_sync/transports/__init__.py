"""Ways of weights from the actor to the engines."""

"""An engine behind servers that speak the OpenAI protocol."""

"""Tools of MCP servers. `keys` needs no MCP package; the other files need the extra `agentrl[mcp]`."""

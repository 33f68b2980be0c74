"""All that touches Ray's own API: starting, joining, spawning and awaiting."""

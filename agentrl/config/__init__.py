"""Every knob, and how a file becomes a checked tree."""

"""Every key of a config, with its default and its line of documentation."""

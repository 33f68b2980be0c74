"""Checkpoints and exported policies: written aside, then renamed; copied to an object store."""

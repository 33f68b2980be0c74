"""Advice on a run's step time: what each stage costs, and when to say so."""

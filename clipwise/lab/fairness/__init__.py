"""Fairness over the runs of a study: what each group pays, with intervals, as tables and charts."""

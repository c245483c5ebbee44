"""Loops of other people, made private: each thin, each behind an extra of its own."""

"""Look: what is proved of a model before it is trusted with private records, and watched while it is trained."""

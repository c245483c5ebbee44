"""Other libraries' interfaces over Clipwise's own run, for scripts that were written for them."""

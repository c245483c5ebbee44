"""A configured run: options in a file, data and model by name, and the folder that the run leaves behind."""

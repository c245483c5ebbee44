"""The training loop, and what it is made of beside the private step: learning rates, averages, evaluation."""

"""`opacus.utils`, as far as a training script needs it."""

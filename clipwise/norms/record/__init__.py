"""Record: what one forward and backward pass leaves behind, from the tap on a unit to the tape that the step uses up."""

"""Recovery of examples from the update that they were trained to: labels first, then the images."""

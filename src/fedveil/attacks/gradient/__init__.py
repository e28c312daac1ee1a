"""Recovery of training examples from a client's update: first the labels, then the inputs."""

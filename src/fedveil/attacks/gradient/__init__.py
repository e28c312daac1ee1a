"""Examples from the update that they were trained to: labels, then the images themselves."""

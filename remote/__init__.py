"""What runs in the container, beside the servers; pushed there as it is."""

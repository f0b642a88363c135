"""Ways of adding up tensors over all ranks, each as a schedule of messages, and their execution."""

"""What the computation graph of a batch tells: where its samples are, and which rule applies."""

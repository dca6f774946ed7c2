"""Reading the autograd graph of a batch: where its samples are, and which rule applies where."""

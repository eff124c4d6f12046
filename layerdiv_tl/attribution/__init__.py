"""Direct contributions of every component to the logits."""

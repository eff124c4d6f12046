"""From a model to numbers: the direct contribution of every component to the logits."""

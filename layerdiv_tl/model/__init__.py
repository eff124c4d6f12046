"""A model and what it is made of: the only room that knows Hugging Face and TransformerLens."""

"""Models and their parts; the only package here that imports Hugging Face and TransformerLens."""

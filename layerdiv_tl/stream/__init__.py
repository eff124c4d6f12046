"""Model -> numbers. This room alone knows TransformerLens and Hugging Face."""

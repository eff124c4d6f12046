"""Classification tasks as prompts, options and labels."""

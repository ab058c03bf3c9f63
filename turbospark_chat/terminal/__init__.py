"""What a person or a pipe sees: the only place that knows prompt_toolkit and rich."""

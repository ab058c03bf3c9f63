"""Messages in, prompt ids and conversations out. Knows the engine, never a model file or the terminal."""

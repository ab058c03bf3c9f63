"""Token ids in, text events out. Knows no file format, no chat and no terminal."""

"""A file in, a LogitProducer out. Knows no sampling, no chat and no terminal."""

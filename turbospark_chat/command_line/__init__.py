"""The commands of `ts`: what each takes, and from there to something running. The composition root."""

"""The slash commands: one table, a file for each topic, and what they may use wherever they were typed."""

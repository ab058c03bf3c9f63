"""What a run was told: flags as data, the config file, the environment, and what holds in the end. Light."""

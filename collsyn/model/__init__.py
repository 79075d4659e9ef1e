"""The nouns of collsyn (topology, collective, schedule, plan, profile) and their files."""

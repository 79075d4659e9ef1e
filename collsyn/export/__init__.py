"""Files of other people's runtimes and tools: written from schedules and plans, and read back to be judged."""

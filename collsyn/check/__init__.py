"""The judge: verifies, times and executes schedules and plans, knowing no synthesizer."""

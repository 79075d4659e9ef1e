"""What this machine can do, and what is in the way: one check a subject, each with a remedy."""

"""Execution of plans between real ranks: backends, launcher, communicator."""

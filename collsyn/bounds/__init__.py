"""Lower bounds on the time of a collective, each with a certificate."""

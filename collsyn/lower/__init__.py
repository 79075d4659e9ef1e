"""Lowering: from a schedule to the plan that ranks execute."""

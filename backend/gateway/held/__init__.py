"""A gateway before one server that comes and goes: requests are held while it is not there."""

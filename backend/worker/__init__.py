"""One job in one process: `python -m backend.worker CHANNEL`. Speaks through its JobChannel only."""

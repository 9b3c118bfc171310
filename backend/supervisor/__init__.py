"""The supervisor: claims queued jobs, launches workers, carries their events into the store, registers what they
made."""
